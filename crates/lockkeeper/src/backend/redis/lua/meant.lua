-- Purpose:   part of the scripts that take a lock away from whoever holds it
-- Returns:   nothing by itself
-- Publishes: nothing
-- Whether every one of these owners stands among some arguments, from the given one on; anybody is meant
-- if there are none.
local function meant(owners, arguments, first)
  if #arguments < first then return true end
  local named = {}
  for i = first, #arguments do named[arguments[i]] = true end
  for _, owner in ipairs(owners) do
    if not named[owner] then return false end
  end
  return true
end

