
-- One limit, or several that admit together. Mirrors pkg/engine/list.go.
local limits, family = {}, {}

-- merge combines the fields that describe all limits: the latest window, the longest wait, the most renewed.
local function merge(d, e)
  for field = 5, 7 do d[field] = math.max(d[field], e[field]) end
  return d
end

-- stricter reports whether d is stricter than e, which precedes it in the list.
local function stricter(d, d_rejects, e, e_rejects)
  if d_rejects ~= e_rejects then return d_rejects end
  if d_rejects then return d[4] > e[4] end
  return d[2] < e[2]
end

local function take()
  local views, d, over = {}, nil, false
  for i = 1, #limits do views[i] = family[i].view(limits[i]) end
  if a.listed then
    for i = 1, #limits do a.most = math.min(a.most, family[i].room(limits[i], views[i])) end
  end
  for i = 1, #limits do
    local e, rejects = family[i].take(limits[i], views[i])
    e[8] = i - 1
    if rejects and a.cost > limits[i].hits then e[4] = MAX end -- never admitted
    if i == 1 then
      d, over = e, rejects
    elseif stricter(e, rejects, d, over) then
      d, over = merge(e, d), rejects
    else
      merge(d, e)
    end
  end
  return d
end

local function give()
  local d
  for i = 1, #limits do
    local e = family[i].give(limits[i], family[i].view(limits[i]))
    e[8] = i - 1
    if i == 1 then
      d = e
    elseif e[2] < d[2] then
      d = merge(e, d)
    else
      merge(d, e)
    end
  end
  return d
end

local function reset()
  for i = 1, #limits do redis.call('UNLINK', limits[i].key) end
  local d = give()
  d[1] = 1
  return d
end
