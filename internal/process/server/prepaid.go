package server

import (
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/ratelimitd/ratelimitd/internal/process/health"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// prepaid degrades health while rules have prepaid budgets and a Redis node may evict them or hides its eviction policy. Prepaid
// budgets never expire.
type prepaid struct {
	log    *slog.Logger
	health *health.Tracker

	mu    sync.Mutex
	used  bool              // a rule has unit: forever
	nodes map[string]string // node to the problem with its policy, as text
	part  *health.Part      // nil before the first problem
	why   string            // last reported problem
}

func newPrepaid(log *slog.Logger, h *health.Tracker) *prepaid {
	return &prepaid{log: log, health: h, nodes: make(map[string]string)}
}

// policy records the maxmemory-policy of a node, or "" if it is unknown.
func (p *prepaid) policy(node, policy string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case policy == "":
		p.nodes[node] = node + " does not permit INFO, which has its maxmemory-policy"
	case policy == "noeviction" || strings.HasPrefix(policy, "volatile-"):
		delete(p.nodes, node)
	default:
		p.nodes[node] = "the maxmemory-policy of " + node + " is " + policy
	}
	p.report()
}

// loaded records whether rules have prepaid budgets. p may be nil.
func (p *prepaid) loaded(set *descriptors.Set) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used = false
	for r := range set.Rules() {
		p.used = p.used || r.Forever()
	}
	p.report()
}

// report updates health and the log if the problem has changed. p.mu must be held.
func (p *prepaid) report() {
	var all []string
	if p.used {
		for _, why := range p.nodes {
			all = append(all, why)
		}
	}
	slices.Sort(all)
	why := strings.Join(all, "; ")
	if why == p.why {
		return
	}
	if p.why = why; p.part == nil {
		p.part = p.health.Add("prepaid budgets", true, "")
	}
	if why == "" {
		p.log.Info("no Redis may evict prepaid budgets any more")
		p.part.Set(true, "")
		return
	}
	const hint = "Redis may evict prepaid budgets, which could then be spent again: set maxmemory-policy to noeviction or volatile-ttl"
	p.log.Error(hint, "reason", why)
	p.part.Degrade(hint + ": " + why)
}
