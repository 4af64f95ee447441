-- Tables of rows, one table for each limit that replicas divide. A replica stores its row in the table and gets all rows. The script
-- mirrors Agree of internal/testkit/sharestest. It reads and writes one row for each replica and limit.
--
-- KEYS     the table of each limit. Each line is a row: name of the replica, end (µs since the epoch), JSON
--
-- ARGV     three for each limit:
--   1      name of the replica, without blanks
--   2      lifetime of its row (µs)
--   3      JSON, on one line
-- result   the rows of each limit, without those that have ended; an error for a limit whose key is not a string
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- most is the maximum size of a table in bytes. A larger one is from another program; it is replaced without being read.
local most = 1048576

-- agree stores a row in a table and returns the table.
local function agree(key, me, life, says)
  local rows, last = {}, 0
  local got = redis.pcall('STRLEN', key)
  if type(got) == 'table' then -- an error of this limit
    return got
  end
  got = got <= most and redis.call('GET', key)
  for row in string.gmatch(got or '', '[^\n]+') do
    local name, till = string.match(row, '^(%S+) (%d+) ')
    till = tonumber(till)
    if name and name ~= me and till > now then -- drops expired rows, and text that no script wrote
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
