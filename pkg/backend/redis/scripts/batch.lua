
-- The operations, in order. A group consists of a byte for its kind, the number of its operations in 4 bytes, and the values that they
-- share. Operations of kinds 0 and 1 are common takes, which consume everything or nothing. They have one key each, and share cost, count
-- and the limit, as described in the file of the family with that number; cost·count is less than 2^31, and hits and burst are less than
-- 2^32. If the loops for these kinds cannot decide, they call decide_one.
--
-- An answer is a double: from 0, the result of a common take, as described below; −1 if a decision follows, 9 doubles; −2 if the
-- operation failed; −3 if a decision with reservations follows, 14 doubles.
local read, decide, decide_one
local out, size, errors, readonly = {}, 0, nil, nil
local call, unpacked, keys = redis.pcall, struct.unpack, KEYS

local function answer(ok, d)
  size = size + 1
  if ok then
    local fields = d[14] and 14 or 9
    out[size] = fields == 9 and -1 or -3
    for field = 1, fields do out[size + field] = d[field] end
    size = size + fields
  else
    out[size] = -2
    errors = errors or {}
    local text = type(d) == 'table' and d.err or tostring(d)
    errors[#errors + 1] = text
    if string.find(text, 'READONLY ', 1, true) then readonly = text end
  end
end

local function one(...)
  if not decide then read, decide, decide_one = engine() end
  answer(pcall(decide_one, ...))
end

local k, length = 1, #asked
while pos <= length do
  local kind, n
  kind, n, pos = unpacked('<BI4', asked, pos)
  local cost, count
  if kind < 2 then cost, count, pos = unpacked('<dd', asked, pos) end
  if kind == 0 then
    -- Takes of clock-aligned windows. The hits are added first, because Redis itself can add to the state, a number; the result is
    -- checked afterwards. The answer is the number of hits consumed before.
    local hits, window, first, counts
    hits, window, first, counts, pos = unpacked('<ddBB', asked, pos)
    local spent, start, by = cost * count, now - now % window, '1'
    if spent ~= 1 then by = string.format('%.0f', spent) end
    local base, fresh, lasts = start + spent, nil, nil
    local most = (counts == 1 and window - 1 or math.min(hits, window - 1)) - spent
    for i = k, k + n - 1 do
      local key = keys[i]
      local state = call('INCRBY', key, by)
      local used = type(state) == 'number' and state - base
      if used and used >= 0 and used <= most then
        size = size + 1
        out[size] = used
      elseif used and used < 0 and most >= 0 then -- the state is of a past window, or there was none
        fresh = fresh or string.format('%.0f', base)
        lasts = lasts or string.format('%.0f', math.ceil((start + window - now) / 1000) + slack)
        local done = call('SET', key, fresh, 'PX', lasts)
        if done.ok then
          size = size + 1
          out[size] = 0
        else
          answer(false, done)
        end
      else
        local undone = state == spent and call('UNLINK', key) or used and call('INCRBY', key, '-' .. by)
        if type(undone) == 'table' then
          answer(false, undone)
        else
          one(cost, count, key, 0, hits, window, first, counts)
        end
      end
    end
  elseif kind == 1 then
    -- Takes of buckets that start full, without debt and steps, and of queues, which start empty. All keys are different. The answer is
    -- the amount consumed or queued before, as a numerator over us.
    local us, den, burst, top, debt, initial, step, window, leaky, counts
    us, den, burst, top, debt, initial, step, window, leaky, counts, pos = unpacked('<ddddddddBB', asked, pos)
    local spends = cost * count * us
    local most = math.min((burst - cost * count + leaky) * us - leaky, 9007199254740991 - spends)
    -- The state after a take from an unused counter is the same for all keys: first is the text before the last number, and free the time
    -- until which it matters; full is the whole text, and fulls its lifetime.
    local first, free, full, fulls
    local states, pack = call('MGET', unpack(keys, k, k + n - 1)), struct.pack
    for i = 1, n do
      local key, state = keys[k + i - 1], states[i]
      local queued, kept, done = -1, 0, false
      if state == false then
        queued = 0
      elseif state and #state == 48 then
        local at, whole, part, unit, last
        at, whole, part, unit, last, kept = unpacked('<dddddd', state)
        if last <= now then
          queued = 0
        else
          local came = (now - at) * den
          if unit == us and came >= 0 and came < 9007199254740992 and came % 1 == 0 and whole >= 0 and whole % 1 == 0
            and part >= 0 and part < us and part % 1 == 0 then -- otherwise no script wrote it
            queued = whole * us + part
            if queued > 9007199254740991 then queued = -1 elseif queued > came then queued = queued - came else queued = 0 end
            if leaky == 1 and last - now ~= (queued + (den - queued % den) % den) / den then queued = -1 end
          end
        end
      end
      if queued >= 0 and queued <= most and kept < 18014398509481984 then
        local text, stop = first, free
        if queued > 0 or not text then
          local spent = queued + spends
          local over, part = spent % den, spent % us
          stop = now + (spent - over) / den
          if over > 0 then stop = stop + 1 end
          text = pack('<ddddd', now, (spent - part) / us, part, us, stop)
          if queued == 0 then first, free = text, stop end
        end
        if stop <= kept and state then
          done = call('SETRANGE', key, '0', text) == 48
        else
          local whole, lasts = full, fulls
          if queued > 0 or not whole then
            kept = stop + math.max(stop - now, math.min(window, 10000000)) + slack * 1000
            whole, lasts = text .. pack('<d', kept), string.format('%.0f', math.ceil((kept - now) / 1000))
            if queued == 0 then full, fulls = whole, lasts end
          end
          done = call('SET', key, whole, 'PX', lasts, state and 'XX' or 'NX')
          done = done and done.ok
        end
      end
      if done then
        size = size + 1
        out[size] = queued
      else
        one(cost, count, key, 1, us, den, burst, top, debt, initial, step, window, leaky, counts)
      end
    end
  else
    -- Other operations. They share nothing, and have the format of penalty.lua.
    if not decide then read, decide, decide_one = engine() end
    for _ = 1, n do
      k = read(k)
      answer(pcall(decide))
    end
    n = 0
  end
  k = k + n
end

if readonly then return {err = readonly} end -- nothing was written, so another server may execute everything
local packed = string.sub(asked, 1, 8) .. struct.pack('<d' .. string.rep('d', size), now, unpack(out, 1, size))
if errors then return {packed, unpack(errors)} end
return packed
