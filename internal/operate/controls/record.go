package controls

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/operate/replicated"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// record is a control as the text of an entry. Texts of requests are bytes, since they need not be UTF-8. A control that was lifted
// has only its domain.
type record struct {
	ID         string      `json:"id,omitempty"`
	Lifted     bool        `json:"lifted,omitempty"`
	Kind       string      `json:"kind,omitempty"`
	Domain     []byte      `json:"domain"`
	Entries    [][2][]byte `json:"entries,omitempty"`
	Below      bool        `json:"below,omitempty"`
	Requests   uint32      `json:"requests,omitempty"`
	Unit       string      `json:"unit,omitempty"`
	Multiplier uint32      `json:"multiplier,omitempty"`
	LimitName  string      `json:"limit_name,omitempty"`
	Since      int64       `json:"since,omitempty"` // in ms since the epoch, as is Until
	Until      int64       `json:"until,omitempty"`
	By         string      `json:"by,omitempty"`
	Reason     string      `json:"reason,omitempty"`
}

// key returns the key of the entry of c, which follows from its kind and its descriptor. A later control with the same key replaces
// c.
func (c *Control) key() string {
	h := sha256.New()
	for _, text := range append([]string{c.Kind.String(), strconv.FormatBool(c.Below), c.LimitName, c.Domain}, flat(c.Entries)...) {
		_, _ = fmt.Fprintf(h, "%d:%s", len(text), text) // a hash takes everything
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// entry returns c as an entry that is made now.
func (c *Control) entry() (replicated.Entry, error) {
	r := record{
		ID: c.ID, Kind: c.Kind.String(), Domain: []byte(c.Domain), Below: c.Below, LimitName: c.LimitName,
		Since: c.Since.UnixMilli(), Until: c.Until.UnixMilli(), By: c.By, Reason: c.Reason,
	}
	for _, e := range c.Entries {
		r.Entries = append(r.Entries, [2][]byte{[]byte(e.Key), []byte(e.Value)})
	}
	if c.Kind == Limit {
		r.Requests, r.Unit, r.Multiplier = c.To.RequestsPerUnit, c.To.Unit.String(), c.To.Multiplier
	}
	return c.store(&r)
}

// lifted returns the entry that replaces c when it is lifted.
func (c *Control) lifted() (replicated.Entry, error) {
	return c.store(&record{Lifted: true, Domain: []byte(c.Domain)})
}

func (c *Control) store(r *record) (replicated.Entry, error) {
	text, err := json.Marshal(r)
	return replicated.Entry{Key: c.key(), Text: string(text), Expires: c.Until.UnixMilli()}, err
}

// fromEntry returns the control of e. If it was lifted, only its domain is known.
func fromEntry(e *replicated.Entry) (c *Control, lifted bool, err error) {
	var r record
	if err := json.Unmarshal([]byte(e.Text), &r); err != nil {
		return nil, false, fmt.Errorf("the control with the key %s: %w", e.Key, err)
	}
	c = &Control{
		ID: r.ID, Domain: string(r.Domain), Below: r.Below, LimitName: r.LimitName,
		Since: time.UnixMilli(r.Since), Until: time.UnixMilli(r.Until), By: r.By, Reason: r.Reason,
	}
	if r.Lifted {
		return c, true, nil
	}
	for c.Kind < kinds && c.Kind.String() != r.Kind {
		c.Kind++
	}
	for _, e := range r.Entries {
		c.Entries = append(c.Entries, Entry{string(e[0]), string(e[1])})
	}
	c.To = descriptors.Override{RequestsPerUnit: r.Requests, Unit: descriptors.ParseUnit(strings.ToLower(r.Unit)), Multiplier: r.Multiplier}
	switch err = c.validate(Longest); {
	case c.Kind >= kinds:
		err = fmt.Errorf("unknown kind %q", r.Kind)
	case err == nil && c.ID == "":
		err = errors.New("it has no ID")
	}
	if err != nil {
		return nil, false, fmt.Errorf("the control with the key %s: %w", e.Key, err)
	}
	return c, false, nil
}
