
-- Support for operations that the loops of batch.lua cannot decide. From here to the end of penalty.lua there is one function, which is
-- called at the first such operation, because each call of the script runs its whole text and pays for everything it sets up. The
-- function returns read, decide and decide_one.
--
-- The arguments of an operation, in the form that families use. Mirrors pkg/engine/take.go.
--
-- cost    hits that each request consumes, at least 1; in mode 4, the hits to refund
-- count   requests waiting for an answer; in mode 4, the start of the window of the refunded hits, or 0
-- want    count, plus the requests to admit in advance
-- mode    0 take, 1 take of cost 0, 2 peek, 3 peek with cost 0, 4 refund, 5 reset, 6 reset by force,
--         7 settle a reservation
--
-- probe is true if the cost was 0; write, if hits may be consumed; starts, if a bucket that does not start full begins to fill at its
-- first use. most is the number of requests that the other limits of a list admit; listed is true if there are any. owner identifies the
-- owner, or is ''.
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

-- The value of a key may have been written by any program. A state that no script wrote counts as absent. So each number is checked
-- before it is used, and no loop trusts a length in the state.

-- integer reports whether x is an integer from 0 to most. Infinities and NaN are not.
local function integer(x, most) return x % 1 == 0 and x >= 0 and x <= most end

-- forget deletes a state that counts as absent, if the operation may write.
local function forget(key)
  if a.write or a.mode > 3 then redis.call('UNLINK', key) end
end

-- fit returns the number of wanted takes that fit into left hits.
local function fit(left)
  if left < a.cost then return 0 end
  if a.probe then return a.want end
  return math.min(a.want, math.floor(left / a.cost))
end

-- spends returns the hits consumed if the given number of requests is admitted: their cost and, if counts is set, that of the rejected
-- requests of count.
local function spends(admitted, counts)
  if not a.write then return 0 end
  if counts and admitted < a.count and not a.listed then admitted = a.count end
  return math.min(admitted * a.cost, MAX)
end

-- judge returns the number of admitted requests if a limit has the given room, and whether this limit rejects.
local function judge(room)
  return math.min(room, a.most), room < a.count and room <= a.most
end

-- ttl returns the lifetime in ms of a state that is irrelevant from the given time on.
local function ttl(expires)
  return string.format('%.0f', math.max(1, math.ceil((expires - now) / 1000)) + slack)
end

-- families contains the kinds of state, by the byte before a limit. Each is a function that returns a table of
--   format  of a limit, for struct.unpack
--   limit   (key, …) → a limit, from the unpacked values
--   view    (limit) → its current state
--   room    (limit, view) → the number of requests that the limit would admit on its own
--   take    (limit, view) → a decision, and whether the limit rejects; updates state and view
--   give    (limit, view, time when the hits were consumed, or nil if unknown) → a decision
-- A decision is a list of the fields in the result: admitted, left, reset, retry (µs), window (its start, µs), wait (µs), renewed,
-- strictest (from 0), penalty (µs).
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
