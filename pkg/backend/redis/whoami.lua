-- Finds out which process runs scripts that name a key. Changes nothing.
--
-- KEYS[1]: a key, by which a proxy would choose a server
-- Result: the run ID of the process, or nothing if it is part of a cluster or does not say
local info = redis.pcall('INFO', 'server')
if type(info) ~= 'string' or not string.find(info, '_mode:standalone', 1, true) then return '' end
return string.match(info, 'run_id:(%w+)') or ''
