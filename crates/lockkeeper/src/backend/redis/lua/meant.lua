-- Purpose:   part of the scripts that take a lock away from whoever holds it
-- Returns:   nothing by itself
-- Publishes: nothing
-- Whether every one of these owners is among those it is to be taken from; anybody is if there are none.
local function meant(owners, from)
  if #from == 0 then return true end
  local named = {}
  for _, owner in ipairs(from) do named[owner] = true end
  for _, owner in ipairs(owners) do
    if not named[owner] then return false end
  end
  return true
end

