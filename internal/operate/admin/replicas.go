package admin

import (
	"context"
	"strings"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// ReplicaText encodes the status of a replica as one word for the replicas that share its Redis. [replicaOf] decodes it.
func ReplicaText(r *adminv1.Replica) string {
	word := strings.ToLower(strings.TrimPrefix(r.GetHealth().String(), "HEALTH_"))
	if r.GetIsDrained() {
		word += ",drained"
	}
	return word + "," + r.GetRulesVersion()
}

// replicaOf decodes the status of a replica. It ignores unknown words of other releases.
func replicaOf(text string) *adminv1.Replica {
	words := strings.Split(text, ",")
	if len(words) < 2 {
		return new(adminv1.Replica)
	}
	return &adminv1.Replica{
		Health:       adminv1.Health(adminv1.Health_value["HEALTH_"+strings.ToUpper(words[0])]),
		IsDrained:    words[1] == "drained" && len(words) > 2,
		RulesVersion: valid(words[len(words)-1]),
	}
}

// replicas returns the reach of a control, and its replicas.
func (s *Service) replicas(ctx context.Context) (*adminv1.Reach, []*adminv1.Replica) {
	r := s.controls.Reach(ctx)
	if r.Unshared != "" {
		return &adminv1.Reach{Replicas: 1, Alone: r.Unshared}, nil
	}
	var all []*adminv1.Replica
	for _, replica := range r.Replicas[:min(len(r.Replicas), maxReplicas)] {
		m := replicaOf(replica.Status)
		m.Name, m.IsSelf = valid(replica.Name), replica.Self
		all = append(all, m)
	}
	return &adminv1.Reach{Replicas: int32(min(len(r.Replicas), 1<<20))}, all
}

// maxReplicas bounds the replicas in a status.
const maxReplicas = 1000

func (s *Service) reach(ctx context.Context) *adminv1.Reach {
	r, _ := s.replicas(ctx)
	return r
}
