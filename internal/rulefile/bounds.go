package rulefile

import "github.com/ratelimitd/ratelimitd/pkg/engine"

// DefaultPlan is the plan of tenants without another plan. Each descriptor with plans must have it.
const DefaultPlan = "default"

// Bounds of values.
const (
	MaxPlans    = 64
	MaxPlanName = 64 // bytes

	MinLease = 2 // leasing a single hit has no benefit
	MaxLease = 1_000_000

	MaxWindow = engine.Micros(1) << 48
)

// Words used as values.
const (
	HeadersOn  = "on"
	HeadersOff = "off"

	ExpiryKeep   = "keep"
	ExpiryReturn = "return"
)

// UnitNames lists the units for messages.
const UnitNames = "second, minute, hour, day, week, month, year or forever"
