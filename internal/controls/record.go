package controls

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// record is a control as the text of a note. Texts of requests are bytes, since they need not be UTF-8.
type record struct {
	Kind       string      `json:"kind"`
	Domain     []byte      `json:"domain"`
	Entries    [][2][]byte `json:"entries,omitempty"`
	Below      bool        `json:"below,omitempty"`
	Requests   uint32      `json:"requests,omitempty"`
	Unit       string      `json:"unit,omitempty"`
	Multiplier uint32      `json:"multiplier,omitempty"`
	LimitName  string      `json:"limit_name,omitempty"`
	Since      int64       `json:"since"` // in ms since the epoch
	By         string      `json:"by,omitempty"`
	Reason     string      `json:"reason,omitempty"`
}

// note returns c as a note, without the time at which it was made.
func (c *Control) note() (backend.Note, error) {
	r := record{
		Kind: c.Kind.String(), Domain: []byte(c.Domain), Below: c.Below, LimitName: c.LimitName,
		Since: c.Since.UnixMilli(), By: c.By, Reason: c.Reason,
	}
	for _, e := range c.Entries {
		r.Entries = append(r.Entries, [2][]byte{[]byte(e.Key), []byte(e.Value)})
	}
	if c.Kind == Limit {
		r.Requests, r.Unit, r.Multiplier = c.To.RequestsPerUnit, c.To.Unit.String(), c.To.Multiplier
	}
	text, err := json.Marshal(r)
	return backend.Note{ID: c.ID, Ends: c.Until, Text: text}, err
}

// fromNote returns the control that n is.
func fromNote(n *backend.Note) (*Control, error) {
	var r record
	if err := json.Unmarshal(n.Text, &r); err != nil {
		return nil, fmt.Errorf("reading the control %s from the store: %w", n.ID, err)
	}
	c := &Control{
		ID: n.ID, Domain: string(r.Domain), Below: r.Below, LimitName: r.LimitName,
		Since: time.UnixMilli(r.Since), Until: n.Ends, By: r.By, Reason: r.Reason,
	}
	for c.Kind < kinds && c.Kind.String() != r.Kind {
		c.Kind++
	}
	for _, e := range r.Entries {
		c.Entries = append(c.Entries, Entry{string(e[0]), string(e[1])})
	}
	c.To = descriptors.Override{RequestsPerUnit: r.Requests, Unit: descriptors.ParseUnit(strings.ToLower(r.Unit)), Multiplier: r.Multiplier}
	if c.Kind >= kinds {
		return nil, fmt.Errorf("reading the control %s from the store: its kind %q is not known", n.ID, r.Kind)
	}
	if err := c.validate(Longest); err != nil {
		return nil, fmt.Errorf("reading the control %s from the store: %w", n.ID, err)
	}
	return c, nil
}
