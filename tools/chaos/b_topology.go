package main

// topologies returns those checks of group B in which Redis is more than one process, or refuses.
func topologies() []check {
	return []check{
		{"B17", "Redis comes back empty; clocks jump by a second and an hour", "extra ≤ the limit once per jump ahead, none on a jump back; no key denied for longer than its unit; remaining never negative", false, clocksAndMemory},
	}
}
