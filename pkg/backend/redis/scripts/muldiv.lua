
-- muldiv returns the quotient and the remainder of a·b divided by c, for c up to 2^48. Mirrors pkg/engine/muldiv.go. A product that may
-- not fit into a double is divided digit by digit of a (Horner), in base 16, or in base 1024 if c is small enough. A quotient above 2^53
-- is inexact, but exceeds every value that it is compared with.
local function muldiv(a, b, c)
  local floor = math.floor
  local product = a * b
  if product < 9007199254740992 then
    local quo = floor(product / c)
    return quo, product - quo * c
  end
  local base = c < 4398046511104 and 1024 or 16
  local whole = floor(b / c)
  local part = b - whole * c
  local unit = 1
  while unit * base <= a do unit = unit * base end
  local quo, rem = 0, 0
  while unit >= 1 do
    local digit = floor(a / unit)
    a = a - digit * unit
    rem = rem * base + digit * part -- less than 2·base·c
    local more = floor(rem / c)
    rem = rem - more * c
    quo = quo * base + digit * whole + more
    unit = unit / base
  end
  return quo, rem
end
