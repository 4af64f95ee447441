
-- What operations need that the loop of batch.lua cannot decide: from here to the end of penalty.lua there is one function,
-- which is called once there is such an operation, because each call runs the whole text and so pays for everything that
-- it sets up. It returns read, decide and decide_one.
--
-- The arguments of an operation, in the form that families use. Mirrors pkg/engine/take.go.
--
-- cost    hits that each request spends, at least 1; in mode 4, the hits to refund
-- count   requests waiting for an answer; in mode 4, the start of the window to which hits are refunded, or 0
-- want    count, plus the requests to admit in advance
-- mode    0 take, 1 take for a cost of 0, 2 look, 3 look for a cost of 0, 4 refund, 5 reset, 6 reset by force,
--         7 settle a reservation
--
-- probe is true if the cost was 0, write if something may be spent, starts if a bucket that does not start full begins to
-- fill when it is asked for the first time; most is how many requests the other limits of a list admit, listed is true if
-- there are any; owner identifies the owner, or is ''.
local function engine()
local MAX = 9007199254740991
local a = {
  cost = 0, count = 0, want = 0, mode = 0, probe = false, write = false, starts = false, most = MAX, listed = false, owner = '',
}

-- set sets the arguments.
local function set(cost, count, want, mode)
  a.cost, a.count, a.want, a.mode, a.owner, a.most, a.listed = cost, count, want, mode, '', MAX, false
  a.probe, a.write, a.starts = mode == 1 or mode == 3, mode == 0, mode < 2
end

-- What is found under a key may have been written by any program. A state that no script writes counts as absent: so each
-- number of it is examined before it is used, and no loop goes on for as long as it says.

-- whole reports whether a number is an integer from 0 to most. Neither an infinity nor NaN is.
local function whole(x, most) return x % 1 == 0 and x >= 0 and x <= most end

-- forget makes Redis forget a state that counts as absent, if anything may be written.
local function forget(key)
  if a.write or a.mode > 3 then redis.call('UNLINK', key) end
end

-- fit returns how many of the wanted takes fit into left hits.
local function fit(left)
  if left < a.cost then return 0 end
  if a.probe then return a.want end
  return math.min(a.want, math.floor(left / a.cost))
end

-- spends returns the hits that are spent if the given number of requests is admitted: their cost and, if rejected hits count,
-- those of the other requests of count.
local function spends(admitted, counts)
  if not a.write then return 0 end
  if counts and admitted < a.count and not a.listed then admitted = a.count end
  return math.min(admitted * a.cost, MAX)
end

-- judge returns how many are admitted if a limit has room for the given number, and whether it is this limit that rejects.
local function judge(room)
  return math.min(room, a.most), room < a.count and room <= a.most
end

-- ttl returns how long to keep a state that is irrelevant from the given time on, in ms.
local function ttl(expires)
  return string.format('%.0f', math.max(1, math.ceil((expires - now) / 1000)) + slack)
end

-- families are the kinds of state, by the byte before a limit. Each is a function that returns a table of
--   format  of a limit, for struct.unpack
--   limit   (key, …) → a limit, made of what was unpacked
--   view    (limit) → its state as of now
--   room    (limit, view) → how many requests the limit alone would admit
--   take    (limit, view) → a decision, and whether the limit rejects; updates state and view
--   give    (limit, view, when the hits were spent, or nil if that is not known) → a decision
-- A decision is a list of what is in the result: admitted, left, reset, retry (µs), window (its start, µs), wait (µs),
-- renewed, strictest (from 0), penalty (µs).
--
local families = {}

-- family_of returns a family by its byte.
local function family_of(kind)
  local family = families[kind]
  if type(family) == 'function' then
    family = family()
    families[kind] = family
  end
  return family
end
