
-- One limit.
--
-- KEYS[1]  its state
-- result   packed doubles: a decision without the fields that only lists and penalties have
local limit, family = limit_at(1)
if a.pos <= #asked then a.owner = string.sub(asked, a.pos) end
if a.mode > 4 then redis.call('DEL', KEYS[1]) end
local view, d = family.view(limit), nil
if a.mode < 4 then d = family.take(limit, view) else d = family.give(limit, view) end
if a.mode > 4 then d[1] = 1 end
return struct.pack('<ddddddd', unpack(d, 1, 7))
