package admin

import (
	"context"
	"strings"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// ReplicaState is what a server says of itself to those that share its Redis.
type ReplicaState struct {
	Healthy, Degraded, Drained bool
	Rules                      string // the version; empty if there are none
}

// String returns the state as one word, which [stateInto] reads.
func (s ReplicaState) String() string {
	word := "failing"
	switch {
	case s.Healthy && s.Degraded:
		word = "degraded"
	case s.Healthy:
		word = "ok"
	}
	if s.Drained {
		word += ",drained"
	}
	return word + "," + s.Rules
}

// stateInto puts the state that a text describes into m. What another release says, and this one does not know, is left out.
func stateInto(m *adminv1.Replica, text string) {
	words := strings.Split(text, ",")
	if len(words) < 2 {
		return
	}
	m.Health = adminv1.Health(adminv1.Health_value["HEALTH_"+strings.ToUpper(words[0])])
	m.IsDrained = words[1] == "drained" && len(words) > 2
	m.RulesVersion = valid(words[len(words)-1])
}

// replicas returns the reach of a control, and the replicas that it counts.
func (s *Service) replicas(ctx context.Context) (*adminv1.Reach, []*adminv1.Replica) {
	r := s.controls.Reach(ctx)
	if r.Alone != "" {
		return &adminv1.Reach{Replicas: 1, Alone: r.Alone}, nil
	}
	var all []*adminv1.Replica
	for _, replica := range r.Replicas[:min(len(r.Replicas), mostReplicas)] {
		m := &adminv1.Replica{Name: valid(replica.Name), IsSelf: replica.Self}
		stateInto(m, replica.Says)
		all = append(all, m)
	}
	return &adminv1.Reach{Replicas: int32(min(len(r.Replicas), 1<<20))}, all
}

// mostReplicas is how many replicas Status lists at most.
const mostReplicas = 1000

func (s *Service) reach(ctx context.Context) *adminv1.Reach {
	r, _ := s.replicas(ctx)
	return r
}
