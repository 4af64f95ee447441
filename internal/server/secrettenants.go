package server

import (
	"context"

	"github.com/ratelimitd/ratelimitd/internal/secret"
	"github.com/ratelimitd/ratelimitd/internal/tenants"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
)

// sealedTenants keeps tenants so that only who has the secret can read who they are, and on which plan. A name is sealed, not
// hashed, since of one that was taken away there is nothing but the name. Who is there in clear, or under the previous secret, is
// read too, and is kept with the current secret from its next change on.
type sealedTenants struct {
	tenants.SharedStore

	keys *secret.Keys
}

// aboutTenant is what the seal of a name is about.
const aboutTenant = "tenant"

// Changes implements [tenants.SharedStore]. What cannot be opened stays sealed, which is no entry.
func (s *sealedTenants) Changes(ctx context.Context, since backend.Version) (backend.RecordChanges, error) {
	all, err := s.SharedStore.Changes(ctx, since)
	for i := range all.Changed {
		r := &all.Changed[i]
		r.Text = s.open(r.Text, r.Name)
		r.Name = s.open(r.Name, aboutTenant)
	}
	return all, err
}

func (s *sealedTenants) open(text, about string) string {
	if !secret.Sealed([]byte(text)) {
		return text
	}
	open, err := s.keys.Open([]byte(text), about)
	if err != nil {
		return text
	}
	return string(open)
}

// Put implements [tenants.SharedStore]. A tenant that is there under other names is taken away there.
func (s *sealedTenants) Put(ctx context.Context, records []backend.Record, most int, back bool) ([]string, error) {
	var all []backend.Record
	ends := make([]int, len(records)) // of what is of each record
	for i, r := range records {
		if !back {
			all = append(all, backend.Record{Name: r.Name, Gone: true})
			if name := s.keys.Before([]byte(r.Name), aboutTenant); name != nil {
				all = append(all, backend.Record{Name: string(name), Gone: true})
			}
		}
		r.Name = string(s.keys.Seal([]byte(r.Name), aboutTenant))
		if !r.Gone {
			r.Text = string(s.keys.Seal([]byte(r.Text), r.Name))
		}
		all = append(all, r)
		ends[i] = len(all)
	}
	texts, err := s.SharedStore.Put(ctx, all, most, back)
	if err != nil || len(texts) != len(all) {
		return nil, err
	}
	before, from := make([]string, len(records)), 0
	for i, end := range ends {
		for j := from; j < end; j++ { // the current name comes last
			if texts[j] != "" {
				before[i] = s.open(texts[j], all[j].Name)
			}
		}
		from = end
	}
	return before, nil
}
