
-- The arguments of a call, in the form that families use. Mirrors pkg/engine/take.go.
--
-- ARGV[1]  packed, numbers as doubles and flags as bytes:
--            cost   hits that each request spends, at least 1; in mode 4, the hits to give back
--            count  requests waiting for an answer; in mode 4, the start of the window to which hits are given back, or 0
--            want   count, plus the requests to admit in advance
--            slack  how much longer than needed keys are kept, in ms
--            mode   0 take, 1 take for a cost of 0, 2 look, 3 look for a cost of 0, 4 give back, 5 reset, 6 reset by force
--            gated  1 with a penalty, else 0
--          then the penalty, if there is one, as described in limits.lua; for each limit a byte for its family and the
--          limit, as described in the family's file; and 16 bytes that identify the owner, if there is one
--
-- probe is true if the cost was 0, write if something may be spent, starts if a bucket that does not start full begins to
-- fill when it is asked for the first time; most is how many requests the other limits of a list
-- admit, listed is true if there are any; owner is '' if there is none.
local MAX = 9007199254740991
local a = {
  cost = 0, count = 0, want = 0, slack = 0, mode = 0, gated = 0, pos = 0,
  probe = false, write = false, starts = false, most = MAX, listed = false, owner = '',
}
a.cost, a.count, a.want, a.slack, a.mode, a.gated, a.pos = struct.unpack('<ddddBB', asked)
a.probe, a.write, a.starts = a.mode == 1 or a.mode == 3, a.mode == 0, a.mode < 2

-- What is found under a key may have been written by anybody. A state that no script writes counts as absent: so each
-- number of it is examined before it is used, and no loop goes on for as long as it says.

-- whole reports whether a number is an integer from 0 to most. Neither an infinity nor NaN is.
local function whole(x, most) return x % 1 == 0 and x >= 0 and x <= most end

-- forget makes Redis forget a state that counts as absent, if anything may be written.
local function forget(key)
  if a.write or a.mode > 3 then redis.call('DEL', key) end
end

-- fit returns how many of the wanted takes fit into left hits.
local function fit(left)
  if left < a.cost then return 0 end
  if a.probe then return a.want end
  return math.min(a.want, math.floor(left / a.cost))
end

-- spends returns the hits that are spent if the given number of requests is admitted: theirs and, if refused hits count,
-- those of the other requests of count.
local function spends(admitted, counts)
  if not a.write then return 0 end
  if counts and admitted < a.count and not a.listed then admitted = a.count end
  return math.min(admitted * a.cost, MAX)
end

-- judge returns how many are admitted if a limit has room for the given number, and whether it is this limit that refuses.
local function judge(room)
  return math.min(room, a.most), room < a.count and room <= a.most
end

-- ttl returns how long to keep a state that is irrelevant from the given time on, in ms.
local function ttl(expires)
  return string.format('%.0f', math.max(1, math.ceil((expires - now) / 1000)) + a.slack)
end

-- families are the kinds of state, by the byte before a limit. Each is a function that returns a table of
--   format  of a limit, for struct.unpack
--   limit   (key, …) → a limit, made of what was unpacked
--   view    (limit) → its state as of now
--   room    (limit, view) → how many requests the limit alone would admit
--   take    (limit, view) → a decision, and whether the limit refuses; updates state and view
--   give    (limit, view) → a decision
-- A decision is a list of what is in the result: admitted, left, reset, retry (µs), window (its start, µs), wait (µs),
-- renewed, strictest (from 0), penalty (µs).
--
-- Names are local, and each table is made by one constructor, because each call runs the whole script and so pays for
-- everything that it sets up.
local families = {}

-- limit_at returns the i-th limit, which must be the next one in asked, and its family.
local function limit_at(i)
  local kind
  kind, a.pos = struct.unpack('B', asked, a.pos)
  local family = families[kind]
  if type(family) == 'function' then
    family = family()
    families[kind] = family
  end
  local limit = family.limit(KEYS[i], struct.unpack(family.format, asked, a.pos))
  a.pos = a.pos + struct.size(family.format)
  return limit, family
end
