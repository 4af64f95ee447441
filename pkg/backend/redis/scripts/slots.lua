
-- Concurrency. Mirrors pkg/engine/concurrency.go.
--
-- state  a hash. Slots taken together, or by the same owner, are a record. Records are in blocks, in the order in which they
--        end, so that a call reads and writes only a few of them, regardless of their number. The fields, packed, are
--          a number: a block. For each record: its end, the time of the take, its slots, and its owner, or zeros
--          '!' and an owner: the owner's record
--          '': the time of the state, which is that of the newest take or of the last known end of a slot; the number of
--                    slots in blocks; the number of the next block; how far the slots' clock is ahead; 1 if owners have
--                    fields, because there is, or was, more than one block; and for each block, in order, the ends of its
--                    first and its last record, its slots, those without an owner, its records, and its number
--        All times are on the slots' clock, which never goes back: if the clock of Redis goes back, it continues from the time
--        of the state.
-- limit  hits, window
families[3] = function()
  local MANY = 10000 -- the maximum of slots of a limit
  local DROPS = 20 -- ended records that one call drops
  local HEAD, HEAD_SIZE, INDEX_SIZE = '<ddddB', 33, 29
  local spoiled, check, NO_OWNER, RECORD_SIZE, blocks, block, load, record, pack, splice, replace, find,
    add, join, resize, ended, last, search, nth = slot_blocks()

  local function limit(key, hits, window) return {key = key, hits = hits, window = window} end

  -- nothing returns the view of a state without slots, on their clock.
  local function nothing(l)
    return {
      now = now, stop = now + l.window, at = 0, total = 0, next = 1, ahead = 0, index = '', texts = {}, writes = {}, names = {},
      dead = 0, ended = 0, held = 0, last = 0, kept = 0, own = 0, own_stop = 0, mine = nil, named = false, changed = false,
      fresh = false,
    }
  end

  -- absent returns the view of a state that counts as absent.
  local function absent(l)
    forget(l.key)
    return nothing(l)
  end

  -- look returns the view of a stored state. view.now is the time on the slots' clock, and slots taken now end at view.stop. view.held
  -- slots are held, and the last of them ends at view.last. view.dead slots, which come first, have ended, the last of them at
  -- view.ended. view.mine is the caller's record, even if it has ended, or nil; view.own of its slots have not ended, and end at
  -- view.own_stop. view.fresh is true if the stored state must be deleted before writing.
  local function look(l, found)
    local v, head = nothing(l), found[1]
    check(#head >= HEAD_SIZE and (#head - HEAD_SIZE) % INDEX_SIZE == 0 and #head < 100000)
    v.at, v.total, v.next, v.ahead, v.named = struct.unpack(HEAD, head)
    v.index, v.named = string.sub(head, HEAD_SIZE + 1), v.named == 1
    check(v.named or blocks(v) == 1)
    if a.owner ~= '' then v.mine = v.named and found[2] or not v.named and search(l, v) or nil end
    check(not v.mine or #v.mine == RECORD_SIZE)
    check(integer(v.at, MAX) and integer(v.total, MAX) and integer(v.next, 4294967295) and integer(v.ahead, MAX))
    v.now = math.max(now + v.ahead, v.at)
    v.stop = v.now + l.window
    for i = 1, blocks(v) do
      local first, stop, n = block(v, i)
      if first > v.now then break end
      if stop > v.now then
        local text, records = load(l, v, i)
        n, stop = select(2, ended(text, records, v.now))
      end
      v.dead, v.ended = v.dead + n, stop
    end
    v.held = v.total - v.dead
    check(integer(v.held, MANY))
    if v.held == 0 then
      v = nothing(l)
      v.fresh = true
      return v
    end
    if v.now > now + v.ahead then v.ahead, v.changed = v.now - now, true end
    v.last = last(v)
    v.kept = v.last
    check(v.last > v.now and v.last <= v.now + 281474976710656)
    if v.mine then
      local stop, _, n = record(v.mine, 1)
      if stop > v.now then v.own, v.own_stop = n, stop end
      check(v.own <= v.held and stop <= v.last)
    end
    return v
  end

  -- store writes the changes.
  local function store(l, v)
    if not v.changed then return end
    if v.fresh or v.index == '' then redis.call('UNLINK', l.key) end
    if v.index ~= '' then
      local words, gone = {'', struct.pack(HEAD, v.at, v.total, v.next, v.ahead, v.named and 1 or 0) .. v.index}, {}
      for id, written in pairs(v.writes) do
        if written then
          words[#words + 1] = id
          words[#words + 1] = v.texts[id]
        else
          gone[#gone + 1] = id
        end
      end
      for name, text in pairs(v.names) do
        if text then
          words[#words + 1] = name
          words[#words + 1] = text
        else
          gone[#gone + 1] = name
        end
      end
      for i = 1, #words, 1000 do redis.call('HSET', l.key, unpack(words, i, math.min(#words, i + 999))) end
      for i = 1, #gone, 1000 do redis.call('HDEL', l.key, unpack(gone, i, math.min(#gone, i + 999))) end
      if v.last > v.kept then redis.call('PEXPIRE', l.key, ttl(v.last - v.ahead)) end
    end
    v.writes, v.names, v.changed, v.fresh, v.kept = {}, {}, false, false, v.last
  end

  -- own_record sets an owner's record, or removes it if text is nil.
  local function own_record(v, owner, text)
    if v.named then v.names['!' .. owner] = text or false end
    if owner == a.owner then v.mine = text end
  end

  -- settle drops a bounded number of ended records, so that no call takes long.
  local function settle(l, v)
    v.changed = v.changed or v.fresh
    if v.dead == 0 then return end
    if v.ended > v.at then v.at, v.changed = v.ended, true end
    local text, records = load(l, v, 1)
    local ends, slots = ended(text, math.min(records, DROPS), v.now)
    local nobodys = 0
    for j = 1, ends do
      local _, _, n, owner = record(text, j)
      if owner == NO_OWNER then
        nobodys = nobodys + n
      else
        own_record(v, owner, nil)
      end
    end
    replace(v, 1, splice(text, RECORD_SIZE, 1, ends, ''), -slots, -nobodys)
    v.dead = v.dead - slots
  end

  -- left returns the number of slots that the caller may hold, including those it already holds.
  local function left(l, v) return math.max(0, l.hits - v.held + v.own) end

  -- room returns the number of takes that are admitted. An owner that takes again keeps the slots it already holds, even if the limit has
  -- fallen below the number held.
  local function room(l, v)
    local left = left(l, v)
    if a.owner ~= '' and (a.cost <= left or a.cost <= v.own and l.hits > 0) then return a.want end
    return fit(left)
  end

  -- reset_in returns the time until the last slot is free.
  local function reset_in(v) return v.held > 0 and v.last - v.now or 0 end

  -- free returns the time until n slots of other callers are free. There must be that many.
  local function free(l, v, n)
    if n <= 0 then return 0 end
    local stop = nth(l, v, v.dead + n)
    if v.own > 0 and (not stop or stop >= v.own_stop) then stop = nth(l, v, v.dead + n + v.own) end
    return (stop or v.last) - v.now
  end

  -- mine returns the position of the caller's record, and its block.
  local function mine(l, v)
    local stop, taken = record(v.mine, 1)
    local i, j, text = find(l, v, stop, taken, a.owner)
    check(i)
    return i, j, text
  end

  -- hold gives the caller n more slots and, if it is an owner, renews those it has. It never shortens them.
  local function hold(l, v, n)
    local stop, i, j, text = v.stop, nil, nil, nil
    v.held, v.changed = v.held + n, true
    if a.owner ~= '' then
      stop = math.max(stop, v.own_stop)
      if v.mine then
        i, j, text = mine(l, v)
        resize(l, v, i, j, text, 0)
        if v.own == 0 then v.dead = v.dead - select(3, record(v.mine, 1)) end
      end
      v.own, v.own_stop = v.own + n, stop
      add(l, v, stop, v.now, v.own, a.owner)
      own_record(v, a.owner, pack(stop, v.now, v.own, a.owner))
    else
      if v.at == v.now then i, j, text = find(l, v, stop, v.now, NO_OWNER) end
      if i then
        local _, _, old = record(text, j)
        resize(l, v, i, j, text, old + n)
      else
        add(l, v, stop, v.now, n, NO_OWNER)
      end
    end
    v.at, v.last = v.now, math.max(v.last, stop)
  end

  -- release_mine releases up to n slots of the calling owner.
  local function release_mine(l, v, n)
    if v.own == 0 then return end
    local i, j, text = mine(l, v)
    local stop, taken, had = record(text, j)
    n = math.min(n, had)
    resize(l, v, i, j, text, had - n)
    v.held, v.own = v.held - n, had - n
    own_record(v, a.owner, n < had and pack(stop, taken, had - n, a.owner) or nil)
  end

  -- release_nobodys releases up to n ownerless slots, those that end first. All slots of a counter have owners, or none has, depending on
  -- the rule. So blocks are removed or stay as a whole, except for one.
  local function release_nobodys(l, v, n)
    local i, from = 1, nil
    while n > 0 and i <= blocks(v) do
      local first, stop, all, free = block(v, i)
      if free == 0 or stop <= v.now then
        i = i + 1
      elseif free == all and free <= n and first > v.now then
        replace(v, i, '', -all, -all)
        v.held, n = v.held - all, n - all
      else
        from = from or i
        local text, records = load(l, v, i)
        local kept, gone = {}, 0
        for j = 1, records do
          local stop, taken, slots, owner = record(text, j)
          local less = owner == NO_OWNER and stop > v.now and math.min(n, slots) or 0
          gone, n = gone + less, n - less
          if less == 0 then
            kept[#kept + 1] = string.sub(text, (j - 1) * RECORD_SIZE + 1, j * RECORD_SIZE)
          elseif less < slots then
            kept[#kept + 1] = pack(stop, taken, slots - less, owner)
          end
        end
        replace(v, i, table.concat(kept), -gone, -gone)
        v.held = v.held - gone
        if #kept > 0 then i = i + 1 end
      end
    end
    for i = i, from and from - 1 or i, -1 do join(l, v, i) end
  end

  local function decide(l, v)
    if a.write then settle(l, v) end
    local left = left(l, v)
    local admitted, rejects = judge(room(l, v))
    local renewed = 0
    if a.write and admitted > 0 then
      local n = spends(admitted, false)
      if a.owner ~= '' then
        n = math.max(0, a.cost - v.own)
        renewed = a.cost - n
      end
      hold(l, v, n)
    end
    local reset, retry = reset_in(v), 0
    if rejects and a.cost <= l.hits then retry = free(l, v, v.held - v.own + a.cost - l.hits) end
    return {admitted, left, reset, retry, 0, 0, renewed, 0, 0}, rejects
  end

  local function release(l, v)
    settle(l, v)
    if a.cost > 0 and v.held > 0 then
      if a.owner ~= '' then release_mine(l, v, a.cost) else release_nobodys(l, v, a.cost) end
      if v.held > 0 then v.last = last(v) else v.index = '' end
    end
    return {0, left(l, v), reset_in(v), 0, 0, 0, 0, 0, 0}
  end

  -- guarded calls f, which must not write. If f finds a value that no script wrote, the state counts as absent. f must not cause errors
  -- of Redis, because some versions modify errors that pass through pcall; commands fail before, in view, or later, in store.
  local function guarded(f, l, v)
    local ok, first, second = pcall(f, l, v)
    if ok then return v, first, second end
    if first ~= spoiled then error(first, 0) end
    v = absent(l)
    return v, f(l, v)
  end

  local function view(l)
    local found = redis.call('HMGET', l.key, '', '!' .. a.owner)
    if not found[1] then return absent(l) end
    local ok, v = pcall(look, l, found)
    if ok then return v end
    if v ~= spoiled then error(v, 0) end
    return absent(l)
  end

  local function take(l, v)
    local v, d, rejects = guarded(decide, l, v)
    if a.write then store(l, v) end
    return d, rejects
  end

  local function give(l, v)
    local v, d = guarded(release, l, v)
    store(l, v)
    return d
  end

  return {format = '<dd', limit = limit, view = view, room = room, take = take, give = give}
end
