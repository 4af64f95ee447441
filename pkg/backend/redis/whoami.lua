-- Returns the run ID of the process that executes scripts for a key. Changes nothing.
--
-- KEYS[1]  a key, by which a proxy would choose a server
-- result   the run ID of the process, or '' if it is part of a cluster or does not report it
local info = redis.pcall('INFO', 'server')
if type(info) ~= 'string' or not string.find(info, '_mode:standalone', 1, true) then return '' end
return string.match(info, 'run_id:(%w+)') or ''
