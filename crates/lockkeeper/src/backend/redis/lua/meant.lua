-- Purpose:   part of the scripts that take a lock away from whoever holds it
-- Returns:   nothing by itself
-- Publishes: nothing
-- Whether every one of these owners stands in ARGV from `first` on; if nobody does, anybody is meant.
local function meant(owners, first)
  if #ARGV < first then return true end
  local named = {}
  for i = first, #ARGV do named[ARGV[i]] = true end
  for _, owner in ipairs(owners) do
    if not named[owner] then return false end
  end
  return true
end

