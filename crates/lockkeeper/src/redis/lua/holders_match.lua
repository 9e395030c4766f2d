-- Purpose:   part of the scripts that force-release
-- Returns:   nothing by itself
-- Publishes: nothing
-- Whether all owners are among the arguments from `first` on; always true if there are no such
-- arguments.
local function holders_match(owners, arguments, first)
  if #arguments < first then return true end
  local named = {}
  for i = first, #arguments do named[arguments[i]] = true end
  for _, owner in ipairs(owners) do
    if not named[owner] then return false end
  end
  return true
end

