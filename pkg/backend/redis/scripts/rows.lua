-- What the replicas that divide limits tell each other: a row of each, in a table for each limit. A replica puts its own in, and gets all of
-- them. It mirrors Agree of internal/testkit/sharestest. Its cost is that of reading and writing as many rows as there are replicas, for each
-- limit.
--
-- KEYS     the rows of each limit, each of them a line: name of the replica, when the row ends (µs since the epoch), what it says
--
-- ARGV     three for each limit:
--   1      name of the replica, which has no blank
--   2      how long its row counts (µs)
--   3      what it says, in one line
-- result   the rows of each limit, without those that have ended; an error for a limit whose key is not a text
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- most is how many bytes the rows of a limit can have. More were written by another program, and are replaced without reading them.
local most = 1048576

-- agree puts a row into the rows of a limit, and returns them.
local function agree(key, me, life, says)
  local rows, last = {}, 0
  local got = redis.pcall('STRLEN', key)
  if type(got) == 'table' then -- an error, which is about this limit only
    return got
  end
  got = got <= most and redis.call('GET', key)
  for row in string.gmatch(got or '', '[^\n]+') do
    local name, till = string.match(row, '^(%S+) (%d+) ')
    till = tonumber(till)
    if name and name ~= me and till > now then -- what no script wrote is left out
      rows[#rows + 1] = row
      last = math.max(last, till)
    end
  end
  local ends = now + tonumber(life)
  rows[#rows + 1] = string.format('%s %.0f %s', me, ends, says)
  local text = table.concat(rows, '\n')
  redis.call('SET', key, text, 'PX', string.format('%.0f', math.ceil((math.max(last, ends) - now) / 1000)))
  return text
end

local texts = {}
for i, key in ipairs(KEYS) do
  texts[i] = agree(key, unpack(ARGV, 3 * i - 2, 3 * i))
end
return texts
