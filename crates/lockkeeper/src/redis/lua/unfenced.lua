-- Purpose:   part of the scripts that grant without a fencing token, where another key follows
-- Returns:   nothing by itself
-- Publishes: nothing
local fenced = false

