-- Fills a counter of a sliding window or a log with more runs than any counter has, in the format of the scripts. A run is packed as in
-- scripts/runs.lua: at, hits, sum, gone, and in a log the hits of its limit.
--
-- KEYS[1]  the counter
-- ARGV[1]  the times of the runs: 'old', almost too old to count; 'now', the last ones before now; 'from then', in the future;
--          'back in time', the newest first; or 'all but no run', invalid runs followed by a valid one
-- ARGV[2]  now, in µs since the epoch
-- ARGV[3]  n, the number of runs
-- ARGV[4]  the size of a run in bytes: 32, or 40 in a log
-- ARGV[5]  ticks per µs
--
-- result   the number of runs
local how, now, n, size, ticks = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

local function run(at, sum, gone)
  local text = struct.pack('<dddd', math.floor(at * ticks), 1, sum, gone)
  if size == 40 then text = text .. struct.pack('<d', 10000) end
  return text
end

local ats = {
  old = function(i) return now - 6e7 - n + i end,
  now = function(i) return now - n + i end,
  ['from then'] = function(i) return now + i end,
  ['back in time'] = function(i) return now - i end,
}
local at = ats[how]
if not at and how ~= 'all but no run' then error('there is no way to fill a counter with runs ' .. how) end

redis.call('DEL', KEYS[1])
for i = 1, n do
  local text
  if at then
    text = run(at(i), i, now + 6e7 + n)
  elseif i < n then
    text = string.rep('x', size)
  else
    text = run(now, n, now + 6e7)
  end
  redis.call('RPUSH', KEYS[1], text)
end
return redis.call('LLEN', KEYS[1])
