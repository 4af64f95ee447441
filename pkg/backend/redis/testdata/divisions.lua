
-- Results of muldiv for many numbers. Follows scripts/muldiv.lua.
--
-- KEYS    a, b and c, repeatedly
-- result  for each three of them, the quotient of a·b divided by c, and its remainder, as text
local out = {}
for i = 1, #KEYS, 3 do
  local quo, rem = muldiv(KEYS[i] + 0, KEYS[i + 1] + 0, KEYS[i + 2] + 0)
  out[#out + 1] = string.format('%.0f %.0f', quo, rem)
end
return out
