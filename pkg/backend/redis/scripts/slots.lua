
-- Concurrency. Mirrors pkg/engine/concurrency.go.
--
-- state  a hash. Slots that were taken together, or that have the same owner, are a record. Records are in blocks, those
--        that end first before the others, so that a call reads and writes few of them, however many there are. Packed,
--        under
--          a number  a block: of each record its end, when it was taken, its slots, and its owner, zeros if it has none
--          '!' and an owner  the owner's record
--          ''        when the newest slots were taken; how many slots are in blocks; the number of the next block; until
--                    when slots that have ended were dropped, of which some are still there, or 0; 1 if owners have
--                    fields, because there is more than one block, or was; and of each block, in order, when its first
--                    and its last record end, its slots, those of them that have no owner, how many records it has, and
--                    its number
-- limit  hits, window
families[3] = function()
  local MANY = 10000 -- no limit has more slots
  local FULL = 100 -- records in a block
  local DROPS = 20 -- records that end and are dropped by one call
  local RECORD, RECORD_SIZE = '<ddHc16', 34
  local HEAD, HEAD_SIZE = '<ddddB', 33
  local BLOCK, BLOCK_SIZE = '<ddIIBI', 29
  local NOBODY = string.rep('\0', 16)
  local spoiled = {} -- the error of a state that no script wrote

  local function check(ok)
    if not ok then error(spoiled) end
  end

  local function limit(key, hits, window) return {key = key, hits = hits, window = window} end

  local function blocks(v) return #v.index / BLOCK_SIZE end

  -- block returns when the i-th block's first and last record end, its slots, those of nobody, its records, its number.
  local function block(v, i)
    local first, last, n, free, records, id = struct.unpack(BLOCK, v.index, (i - 1) * BLOCK_SIZE + 1)
    check(whole(first, MAX) and whole(last, MAX) and first <= last and free <= n and records > 0 and records <= n)
    return first, last, n, free, records, id
  end

  -- load returns the records of the i-th block and their number.
  local function load(l, v, i)
    local _, _, _, _, records, id = block(v, i)
    local text = v.texts[id] or redis.call('HMGET', l.key, id)[1]
    check(text and #text == records * RECORD_SIZE)
    v.texts[id] = text
    return text, records
  end

  -- record returns the end of the j-th record of a block, when it was taken, its slots and its owner.
  local function record(text, j)
    local stop, taken, n, owner = struct.unpack(RECORD, text, (j - 1) * RECORD_SIZE + 1)
    check(whole(stop, MAX) and whole(taken, stop) and n > 0)
    return stop, taken, n, owner
  end

  -- splice returns a text in whose place of the i-th to the j-th piece another text is.
  local function splice(text, size, i, j, new)
    return string.sub(text, 1, (i - 1) * size) .. new .. string.sub(text, j * size + 1)
  end

  -- describe returns what the index says of a block.
  local function describe(text, n, free, id)
    local records = #text / RECORD_SIZE
    local first, last = record(text, 1), record(text, records)
    check(free <= n and records <= n)
    return struct.pack(BLOCK, first, last, n, free, records, id)
  end

  -- replace replaces the i-th block by records that have so many slots more, and so many more of nobody.
  local function replace(v, i, text, more, freer)
    local _, _, n, free, _, id = block(v, i)
    check(n + more >= 0 and free + freer >= 0)
    v.total, v.texts[id], v.changed = v.total + more, text, true
    v.writes[id] = text ~= ''
    v.index = splice(v.index, BLOCK_SIZE, i, i, text ~= '' and describe(text, n + more, free + freer, id) or '')
  end

  -- create makes the i-th block of records, whose slots are in v.total already.
  local function create(v, i, text, n, free)
    local id = v.next
    v.next = (id + 1) % 4294967296
    v.texts[id], v.writes[id], v.changed = text, true, true
    v.index = splice(v.index, BLOCK_SIZE, i, i - 1, describe(text, n, free, id))
  end

  -- sums returns how many slots records have, and how many of them nobody owns.
  local function sums(text)
    local n, free = 0, 0
    for j = 1, #text / RECORD_SIZE do
      local _, _, slots, owner = record(text, j)
      n = n + slots
      if owner == NOBODY then free = free + slots end
    end
    return n, free
  end

  -- seek returns where a record is, or should be: in which block and where in it. There must be a block.
  local function seek(l, v, stop, taken)
    local i, high = 1, blocks(v)
    while i < high do
      local middle = math.floor((i + high) / 2)
      local _, last = block(v, middle)
      if last < stop then i = middle + 1 else high = middle end
    end
    while true do
      local text, records = load(l, v, i)
      local j, above = 1, records + 1
      while j < above do
        local middle = math.floor((j + above) / 2)
        local at, from = record(text, middle)
        if at < stop or at == stop and from < taken then j = middle + 1 else above = middle end
      end
      if j <= records or i == blocks(v) or block(v, i + 1) > stop then return i, j, text, records end
      i = i + 1
    end
  end

  -- find returns where the record of an owner is, and the block, or nothing.
  local function find(l, v, stop, taken, owner)
    if blocks(v) == 0 then return end
    local i, j, text, records = seek(l, v, stop, taken)
    while true do
      if j > records then
        i, j = i + 1, 1
        if i > blocks(v) then return end
        text, records = load(l, v, i)
      end
      local at, from, _, whose = record(text, j)
      if at ~= stop or from ~= taken then return end
      if whose == owner then return i, j, text end
      j = j + 1
    end
  end

  -- name gives the owners of the only block fields of their own.
  local function name(l, v)
    v.named = true
    local text, records = load(l, v, 1)
    for j = 1, records do
      local _, _, _, owner = record(text, j)
      if owner ~= NOBODY then v.names['!' .. owner] = string.sub(text, (j - 1) * RECORD_SIZE + 1, j * RECORD_SIZE) end
    end
  end

  -- add adds a record.
  local function add(l, v, stop, taken, n, owner)
    local text, free = struct.pack(RECORD, stop, taken, n, owner), owner == NOBODY and n or 0
    local last = blocks(v)
    local i, j, old, records = last, 1, nil, FULL
    if last > 0 then i, j, old, records = seek(l, v, stop, taken) end
    if records < FULL then
      replace(v, i, splice(old, RECORD_SIZE, j, j - 1, text), n, free)
      return
    end
    if last == 1 and not v.named then name(l, v) end
    if i == last and (i == 0 or j > records) then
      v.total = v.total + n
      create(v, i + 1, text, n, free)
      return
    end
    local half = string.sub(old, FULL / 2 * RECORD_SIZE + 1)
    local slots, theirs = sums(half)
    replace(v, i, string.sub(old, 1, FULL / 2 * RECORD_SIZE), -slots, -theirs)
    v.total = v.total + slots
    create(v, i + 1, half, slots, theirs)
    add(l, v, stop, taken, n, owner)
  end

  -- join makes one block of the i-th and the next, if they are rather empty, so that there are few blocks.
  local function join(l, v, i)
    if i < 1 or i >= blocks(v) then return end
    local _, _, _, _, records = block(v, i)
    local _, _, n, free, more = block(v, i + 1)
    if records + more > FULL / 2 then return end
    local left, right = load(l, v, i), load(l, v, i + 1)
    replace(v, i + 1, '', -n, -free)
    replace(v, i, left .. right, n, free)
  end

  -- resize changes how many slots the j-th record of the i-th block has; without any it is gone.
  local function resize(l, v, i, j, text, n)
    local stop, taken, old, owner = record(text, j)
    local new = n > 0 and struct.pack(RECORD, stop, taken, n, owner) or ''
    replace(v, i, splice(text, RECORD_SIZE, j, j, new), n - old, owner == NOBODY and n - old or 0)
    if n == 0 then
      join(l, v, i)
      join(l, v, i - 1)
    end
  end

  -- ended returns how many records at the beginning of a block have ended at a time, and how many slots those have.
  local function ended(text, records, at)
    local slots = 0
    for j = 1, records do
      local stop, _, n = record(text, j)
      if stop > at then return j - 1, slots end
      slots = slots + n
    end
    return records, slots
  end

  -- nothing is a view of no slots.
  local function nothing(l)
    return {
      stop = now + l.window, newest = 0, total = 0, next = 1, gone = 0, index = '', texts = {}, writes = {}, names = {},
      dead = 0, held = 0, last = 0, own = 0, own_stop = 0, mine = nil, named = false, changed = false, anew = false,
    }
  end

  -- absent is the view of a state that counts as absent.
  local function absent(l)
    forget(l.key)
    return nothing(l)
  end

  -- last returns when the last record ends, or 0 if there is none.
  local function last(v)
    if blocks(v) == 0 then return 0 end
    local _, stop = block(v, blocks(v))
    return stop
  end

  -- arrived makes the view of a state from the future, where the clock went back: slots that were taken then are as if
  -- they had been taken now.
  local function arrived(l, v)
    local all, texts = {}, {}
    for i = 1, blocks(v) do
      local text, records = load(l, v, i)
      for j = 1, records do
        local stop, taken, n, owner = record(text, j)
        local over = stop <= v.gone
        if taken > now then taken, stop = now, stop - (taken - now) end
        if stop > now and not over then all[#all + 1] = {stop, taken, n, owner} end
      end
    end
    table.sort(all, function(g, h) return g[1] < h[1] or g[1] == h[1] and g[2] < h[2] end)
    v = nothing(l)
    v.newest, v.anew, v.changed, v.named = now, true, true, #all > FULL
    for i, g in ipairs(all) do
      local text = struct.pack(RECORD, unpack(g))
      texts[#texts + 1] = text
      v.held = v.held + g[3]
      if v.named and g[4] ~= NOBODY then v.names['!' .. g[4]] = text end
      if g[4] == a.owner then v.mine = text end
      if #texts == FULL or i == #all then
        text, texts = table.concat(texts), {}
        create(v, blocks(v) + 1, text, sums(text))
      end
    end
    v.total = v.held
    check(v.held <= MANY)
    return v
  end

  -- search returns the caller's record in the only block, or nil.
  local function search(l, v)
    local text, at = load(l, v, 1), 0
    repeat
      at = string.find(text, a.owner, at + 1, true)
    until not at or at % RECORD_SIZE == 19
    return at and string.sub(text, at - 18, at + 15)
  end

  -- view.held slots are held; view.dead, which come first, have ended. view.mine is the caller's record, if there is one,
  -- even if it has ended; view.own slots of it have not, and end at view.own_stop. The last of all ends at view.last, and
  -- slots taken now end at view.stop.
  local function look(l, found)
    local v, head = nothing(l), found[1]
    check(#head >= HEAD_SIZE and (#head - HEAD_SIZE) % BLOCK_SIZE == 0 and #head < 100000)
    v.newest, v.total, v.next, v.gone, v.named = struct.unpack(HEAD, head)
    v.index, v.named = string.sub(head, HEAD_SIZE + 1), v.named == 1
    check(v.named or blocks(v) == 1)
    if a.owner ~= '' then v.mine = v.named and found[2] or not v.named and search(l, v) or nil end
    check(not v.mine or #v.mine == RECORD_SIZE)
    check(whole(v.newest, MAX) and whole(v.total, MAX) and whole(v.next, 4294967295) and whole(v.gone, MAX))
    if math.max(v.newest, v.gone) > now then
      v = arrived(l, v)
    else
      for i = 1, blocks(v) do
        local first, stop, n = block(v, i)
        if first > now then break end
        if stop > now then
          local text, records = load(l, v, i)
          n = select(2, ended(text, records, now))
        end
        v.dead = v.dead + n
        if stop > now then break end
      end
      v.held = v.total - v.dead
    end
    check(whole(v.held, MANY))
    if v.held == 0 then return v end
    v.last = last(v)
    check(v.last > now and v.last <= now + 281474976710656)
    if v.mine then
      local stop, _, n = record(v.mine, 1)
      if stop > now then v.own, v.own_stop = n, stop end
      check(v.own <= v.held and stop <= v.last)
    end
    return v
  end

  -- store writes what has changed.
  local function store(l, v)
    if not v.changed then return end
    if v.anew or v.index == '' then redis.call('DEL', l.key) end
    if v.index ~= '' then
      local words, gone = {'', struct.pack(HEAD, v.newest, v.total, v.next, v.gone, v.named and 1 or 0) .. v.index}, {}
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
      if v.anew or v.last > v.kept then redis.call('PEXPIRE', l.key, ttl(v.last)) end
    end
    v.writes, v.names, v.changed, v.anew, v.kept = {}, {}, false, false, v.last
  end

  -- own_record notes an owner's record, or that it has none any more.
  local function own_record(v, owner, text)
    if v.named then v.names['!' .. owner] = text or false end
    if owner == a.owner then v.mine = text end
  end

  -- settle drops some of what has ended, so that no call takes long, however much that is.
  local function settle(l, v)
    v.kept = v.last
    if blocks(v) > 0 and block(v, 1) <= now then
      local text, records = load(l, v, 1)
      local ends, slots = ended(text, math.min(records, DROPS), now)
      local nobodys = 0
      for j = 1, ends do
        local _, _, n, owner = record(text, j)
        if owner == NOBODY then
          nobodys = nobodys + n
        else
          own_record(v, owner, nil)
        end
      end
      replace(v, 1, splice(text, RECORD_SIZE, 1, ends, ''), -slots, -nobodys)
      v.dead = v.dead - slots
    end
    if v.held == 0 then v.newest = 0 end
    local gone = v.dead > 0 and now or 0
    if gone ~= v.gone then v.gone, v.changed = gone, true end
  end

  -- left returns how many slots the caller may hold in all, including those that it holds.
  local function left(l, v) return math.max(0, l.hits - v.held + v.own) end

  -- A further take of an owner asks for the same slots again, and gets them even if the limit has fallen below what is
  -- held.
  local function room(l, v)
    local left = left(l, v)
    if a.owner ~= '' and (a.cost <= left or a.cost <= v.own and l.hits > 0) then return a.want end
    return fit(left)
  end

  -- reset_in returns the time until the last slot is free.
  local function reset_in(v) return v.held > 0 and math.max(0, v.last - now) or 0 end

  -- nth returns when the n-th slot ends, or nil if there are fewer.
  local function nth(l, v, n)
    for i = 1, blocks(v) do
      local slots = struct.unpack('<I', v.index, (i - 1) * BLOCK_SIZE + 17)
      if n <= slots then
        local text, records = load(l, v, i)
        for j = 1, records do
          slots = struct.unpack('<H', text, (j - 1) * RECORD_SIZE + 17)
          if n <= slots then return (record(text, j)) end
          n = n - slots
        end
        error(spoiled)
      end
      n = n - slots
    end
  end

  -- free returns the time until n of the slots that are not the caller's are free. There must be that many.
  local function free(l, v, n)
    if n <= 0 then return 0 end
    local stop = nth(l, v, v.dead + n)
    if v.own > 0 and (not stop or stop >= v.own_stop) then stop = nth(l, v, v.dead + n + v.own) end
    return (stop or v.last) - now
  end

  -- mine returns where the caller's record is, and the block.
  local function mine(l, v)
    local stop, taken = record(v.mine, 1)
    local i, j, text = find(l, v, stop, taken, a.owner)
    check(i)
    return i, j, text
  end

  -- hold gives the caller n more slots. If it is an owner, it also renews those that it has; none of them ends earlier.
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
      add(l, v, stop, now, v.own, a.owner)
      own_record(v, a.owner, struct.pack(RECORD, stop, now, v.own, a.owner))
    else
      if v.newest == now then i, j, text = find(l, v, stop, now, NOBODY) end
      if i then
        local _, _, old = record(text, j)
        resize(l, v, i, j, text, old + n)
      else
        add(l, v, stop, now, n, NOBODY)
      end
    end
    v.newest, v.last = now, math.max(v.last, stop)
  end

  -- release_mine removes n slots of the owner that asks, or as many as it has.
  local function release_mine(l, v, n)
    if v.own == 0 then return end
    local i, j, text = mine(l, v)
    local stop, taken, had = record(text, j)
    n = math.min(n, had)
    resize(l, v, i, j, text, had - n)
    v.held, v.own = v.held - n, had - n
    own_record(v, a.owner, n < had and struct.pack(RECORD, stop, taken, had - n, a.owner) or nil)
  end

  -- release_nobodys removes n slots that have no owner, or as many as there are: those that end first.
  local function release_nobodys(l, v, n)
    local i, from = 1, nil
    while n > 0 and i <= blocks(v) do
      local first, stop, all, free = block(v, i)
      if free == 0 or stop <= now then
        i = i + 1
      elseif free == all and free <= n and first > now then
        replace(v, i, '', -all, -all)
        v.held, n = v.held - all, n - all
      else
        from = from or i
        local text, records = load(l, v, i)
        local kept, gone = {}, 0
        for j = 1, records do
          local stop, taken, slots, owner = record(text, j)
          local less = owner == NOBODY and stop > now and math.min(n, slots) or 0
          gone, n = gone + less, n - less
          if less == 0 then
            kept[#kept + 1] = string.sub(text, (j - 1) * RECORD_SIZE + 1, j * RECORD_SIZE)
          elseif less < slots then
            kept[#kept + 1] = struct.pack(RECORD, stop, taken, slots - less, owner)
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
    local admitted, refuses = judge(room(l, v))
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
    if refuses then retry = a.cost > l.hits and reset or free(l, v, v.held - v.own + a.cost - l.hits) end
    return {admitted, left, reset, retry, 0, 0, renewed, 0, 0}, refuses
  end

  local function release(l, v)
    settle(l, v)
    if a.cost > 0 and v.held > 0 then
      if a.owner ~= '' then release_mine(l, v, a.cost) else release_nobodys(l, v, a.cost) end
      if v.held > 0 then v.last = last(v) else v.newest = 0 end
    end
    return {0, left(l, v), reset_in(v), 0, 0, 0, 0, 0, 0}
  end

  -- guarded calls f, which writes nothing. Where it comes upon what no script wrote, the state counts as absent. Errors of
  -- Redis are not to come here, because some versions change those that went through pcall: commands that fail have done so
  -- before, in view, or do so in store.
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
    local v, d, refuses = guarded(decide, l, v)
    if a.write then store(l, v) end
    return d, refuses
  end

  local function give(l, v)
    local v, d = guarded(release, l, v)
    store(l, v)
    return d
  end

  return {format = '<dd', limit = limit, view = view, room = room, take = take, give = give}
end
