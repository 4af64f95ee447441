package rulefile

import "github.com/ratelimitd/ratelimitd/pkg/engine"

// DefaultPlan is the plan of tenants that are on no other one. Each descriptor with plans has it.
const DefaultPlan = "default"

// Bounds of what values say.
const (
	MaxPlans    = 64
	MaxPlanName = 64 // bytes

	MinLease = 2 // a single hit is not worth a lease
	MaxLease = 1_000_000

	MaxWindow = engine.Micros(1) << 48
)

// Words that values are.
const (
	HeadersOn  = "on"
	HeadersOff = "off"

	ExpiryKeep   = "keep"
	ExpiryReturn = "return"
)

// UnitNames are the units, for messages.
const UnitNames = "second, minute, hour, day, week, month or year"
