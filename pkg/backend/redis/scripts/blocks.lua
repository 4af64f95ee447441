
-- Slots in blocks: access to the hash that slots.lua describes. All functions take the view of slots.lua, and use its fields
--
-- index   of the blocks, as stored
-- texts   loaded or changed blocks, by number
-- total   number of slots in blocks
-- next    number of the next block
-- named   true if owners have fields
-- writes  blocks to write (true) or to remove (false), by number
-- names   fields of owners to write (their text) or to remove (false), by name
-- changed true if there is anything to write
local function slot_blocks()
  local FULL = 100 -- records in a block
  local RECORD, RECORD_SIZE = '<ddHc16', 34
  local BLOCK, BLOCK_SIZE = '<ddIIBI', 29
  local NO_OWNER = string.rep('\0', 16)
  local spoiled = {} -- error of a state that no script wrote

  local function check(ok)
    if not ok then error(spoiled) end
  end

  local function blocks(v) return #v.index / BLOCK_SIZE end

  -- block returns the ends of the i-th block's first and last record, its slots, those without an owner, its records, and its number.
  local function block(v, i)
    local first, last, n, free, records, id = struct.unpack(BLOCK, v.index, (i - 1) * BLOCK_SIZE + 1)
    check(integer(first, MAX) and integer(last, MAX) and first <= last and free <= n and records > 0 and records <= n)
    return first, last, n, free, records, id
  end

  -- load returns the records of the i-th block, and their number.
  local function load(l, v, i)
    local _, _, _, _, records, id = block(v, i)
    local text = v.texts[id] or redis.call('HMGET', l.key, id)[1]
    check(text and #text == records * RECORD_SIZE)
    v.texts[id] = text
    return text, records
  end

  -- record returns the end of the j-th record of a block, the time of its take, its slots and its owner.
  local function record(text, j)
    local stop, taken, n, owner = struct.unpack(RECORD, text, (j - 1) * RECORD_SIZE + 1)
    check(integer(stop, MAX) and integer(taken, stop) and n > 0)
    return stop, taken, n, owner
  end

  local function pack(stop, taken, n, owner) return struct.pack(RECORD, stop, taken, n, owner) end

  -- splice returns text with the pieces from the i-th to the j-th replaced by new.
  local function splice(text, size, i, j, new)
    return string.sub(text, 1, (i - 1) * size) .. new .. string.sub(text, j * size + 1)
  end

  -- describe returns the entry of a block in the index.
  local function describe(text, n, free, id)
    local records = #text / RECORD_SIZE
    local first, last = record(text, 1), record(text, records)
    check(free <= n and records <= n)
    return struct.pack(BLOCK, first, last, n, free, records, id)
  end

  -- replace replaces the records of the i-th block. more and freer are the changes of the number of slots and of ownerless slots.
  local function replace(v, i, text, more, freer)
    local _, _, n, free, _, id = block(v, i)
    check(n + more >= 0 and free + freer >= 0)
    v.total, v.texts[id], v.changed = v.total + more, text, true
    v.writes[id] = text ~= ''
    v.index = splice(v.index, BLOCK_SIZE, i, i, text ~= '' and describe(text, n + more, free + freer, id) or '')
  end

  -- create inserts a block as the i-th one. v.total already includes its slots.
  local function create(v, i, text, n, free)
    local id = v.next
    v.next = (id + 1) % 4294967296
    v.texts[id], v.writes[id], v.changed = text, true, true
    v.index = splice(v.index, BLOCK_SIZE, i, i - 1, describe(text, n, free, id))
  end

  -- sums returns the number of slots of records, and that of ownerless ones.
  local function sums(text)
    local n, free = 0, 0
    for j = 1, #text / RECORD_SIZE do
      local _, _, slots, owner = record(text, j)
      n = n + slots
      if owner == NO_OWNER then free = free + slots end
    end
    return n, free
  end

  -- seek returns the position of a record, or where it should be inserted: its block, and its place there. There must be a block.
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

  -- find returns the position of an owner's record, and its block, or nothing.
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

  -- name gives each owner in the only block a field.
  local function name(l, v)
    v.named = true
    local text, records = load(l, v, 1)
    for j = 1, records do
      local _, _, _, owner = record(text, j)
      if owner ~= NO_OWNER then v.names['!' .. owner] = string.sub(text, (j - 1) * RECORD_SIZE + 1, j * RECORD_SIZE) end
    end
  end

  -- add adds a record.
  local function add(l, v, stop, taken, n, owner)
    local text, free = pack(stop, taken, n, owner), owner == NO_OWNER and n or 0
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

  -- join merges the i-th block and the next one if both have few records, to keep the number of blocks low.
  local function join(l, v, i)
    if i < 1 or i >= blocks(v) then return end
    local _, _, _, _, records = block(v, i)
    local _, _, n, free, more = block(v, i + 1)
    if records + more > FULL / 2 then return end
    local left, right = load(l, v, i), load(l, v, i + 1)
    replace(v, i + 1, '', -n, -free)
    replace(v, i, left .. right, n, free)
  end

  -- resize changes the number of slots of the j-th record of the i-th block. It removes a record without slots.
  local function resize(l, v, i, j, text, n)
    local stop, taken, old, owner = record(text, j)
    local new = n > 0 and pack(stop, taken, n, owner) or ''
    replace(v, i, splice(text, RECORD_SIZE, j, j, new), n - old, owner == NO_OWNER and n - old or 0)
    if n == 0 then
      join(l, v, i)
      join(l, v, i - 1)
    end
  end

  -- ended returns the number of records at the beginning of a block that have ended at a time, the number of their slots, and the latest
  -- of their ends.
  local function ended(text, records, at)
    local slots, latest = 0, 0
    for j = 1, records do
      local stop, _, n = record(text, j)
      if stop > at then return j - 1, slots, latest end
      slots, latest = slots + n, stop
    end
    return records, slots, latest
  end

  -- last returns the end of the last record, or 0 if there is none.
  local function last(v)
    if blocks(v) == 0 then return 0 end
    local _, stop = block(v, blocks(v))
    return stop
  end

  -- search returns the caller's record in the only block, or nil.
  local function search(l, v)
    local text, at = load(l, v, 1), 0
    repeat
      at = string.find(text, a.owner, at + 1, true)
    until not at or at % RECORD_SIZE == 19
    return at and string.sub(text, at - 18, at + 15)
  end

  -- nth returns the end of the n-th slot, or nil if there are fewer.
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

  return spoiled, check, NO_OWNER, RECORD_SIZE, blocks, block, load, record, pack, splice, replace, find,
    add, join, resize, ended, last, search, nth
end
