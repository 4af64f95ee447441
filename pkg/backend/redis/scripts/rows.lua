-- What the replicas that divide one limit tell each other: a row of each. A replica puts its own in, and gets all of them.
--
-- It says what part of the limit is the replica's: what it wants as far as the parts of the others leave room, and in any case what its
-- clients hold already. It mirrors Agree of internal/shares/sharestest. Its cost is that of reading and writing as many rows as there are replicas.
--
-- KEYS[1]  the rows, each of them a line: name of the replica, when the row ends (µs since the epoch), part, what else it says
--
-- ARGV[1]  name of the replica, which has no blank
-- ARGV[2]  how long its row counts (µs)
-- ARGV[3]  hits a second that its clients hold
-- ARGV[4]  hits a second that it wants
-- ARGV[5]  hits a second that there are for all replicas
-- ARGV[6]  what else it says, in one line
-- result   the rows, without those that have ended
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local rows, others, last = {}, 0, 0
for row in string.gmatch(redis.call('GET', KEYS[1]) or '', '[^\n]+') do
  local name, till, part = string.match(row, '^(%S+) (%d+) (%S+) ')
  till, part = tonumber(till), tonumber(part)
  if name and part and name ~= ARGV[1] and till > now then -- what no script wrote is left out
    rows[#rows + 1] = row
    others, last = others + part, math.max(last, till)
  end
end
local mine = math.max(tonumber(ARGV[3]), math.min(tonumber(ARGV[4]), tonumber(ARGV[5]) - others))
local ends = now + tonumber(ARGV[2])
rows[#rows + 1] = string.format('%s %.0f %.17g %s', ARGV[1], ends, mine, ARGV[6])
local text = table.concat(rows, '\n')
redis.call('SET', KEYS[1], text, 'PX', string.format('%.0f', math.ceil((math.max(last, ends) - now) / 1000)))
return text
