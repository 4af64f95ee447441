package controls

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/operate/replicated"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// record is the JSON text of a control's entry. Texts of requests are bytes, because they need not be UTF-8. A lifted control has
// only its domain.
type record struct {
	ID         string      `json:"id,omitempty"`
	Lifted     bool        `json:"lifted,omitempty"`
	Kind       string      `json:"kind,omitempty"`
	Domain     []byte      `json:"domain"`
	Entries    [][2][]byte `json:"entries,omitempty"`
	Below      bool        `json:"below,omitempty"`
	Requests   uint32      `json:"requests,omitempty"`
	Large      uint64      `json:"large,omitempty"` // the number, if it exceeds Requests, which older replicas read
	Unit       string      `json:"unit,omitempty"`
	Multiplier uint32      `json:"multiplier,omitempty"`
	LimitName  string      `json:"limit_name,omitempty"`
	Since      int64       `json:"since,omitempty"` // ms since the epoch, like Until
	Until      int64       `json:"until,omitempty"`
	By         string      `json:"by,omitempty"`
	Reason     string      `json:"reason,omitempty"`
}

// keyOf returns the key of c's entry, a hash of its kind and descriptor. A later control with the same key replaces c.
func keyOf(c *override.Control) string {
	h := sha256.New()
	for _, text := range append([]string{c.Kind.String(), strconv.FormatBool(c.Below), c.LimitName, c.Domain}, flat(c.Entries)...) {
		_, _ = fmt.Fprintf(h, "%d:%s", len(text), text) // a hash never fails
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// entryOf returns a new entry for c.
func entryOf(c *override.Control) (replicated.Entry, error) {
	r := record{
		ID: c.ID, Kind: c.Kind.String(), Domain: []byte(c.Domain), Below: c.Below, LimitName: c.LimitName,
		Since: c.Since.UnixMilli(), Until: c.Until.UnixMilli(), By: c.By, Reason: c.Reason,
	}
	for _, e := range c.Entries {
		r.Entries = append(r.Entries, [2][]byte{[]byte(e.Key), []byte(e.Value)})
	}
	if c.Kind == override.Limit {
		r.Requests, r.Large, r.Unit, r.Multiplier = c.To.RequestsPerUnit, c.To.LargeRequestsPerUnit, c.To.Unit.String(), c.To.Multiplier
	}
	return store(c, &r)
}

// liftedOf returns the entry that replaces c when it is lifted.
func liftedOf(c *override.Control) (replicated.Entry, error) {
	return store(c, &record{Lifted: true, Domain: []byte(c.Domain)})
}

func store(c *override.Control, r *record) (replicated.Entry, error) {
	text, err := json.Marshal(r)
	return replicated.Entry{Key: keyOf(c), Text: string(text), Expires: c.Until.UnixMilli()}, err
}

// fromEntry parses the control of e. A lifted control has only its domain.
func fromEntry(e *replicated.Entry) (c *override.Control, lifted bool, err error) {
	var r record
	if err := json.Unmarshal([]byte(e.Text), &r); err != nil {
		return nil, false, fmt.Errorf("the control with the key %s: %w", e.Key, err)
	}
	c = &override.Control{
		ID: r.ID, Domain: string(r.Domain), Below: r.Below, LimitName: r.LimitName,
		Since: time.UnixMilli(r.Since), Until: time.UnixMilli(r.Until), By: r.By, Reason: r.Reason,
	}
	if r.Lifted {
		return c, true, nil
	}
	kind := slices.IndexFunc(override.Kinds(), func(k override.Kind) bool { return k.String() == r.Kind })
	c.Kind = override.Kind(max(kind, 0))
	for _, e := range r.Entries {
		c.Entries = append(c.Entries, override.Entry{Key: string(e[0]), Value: string(e[1])})
	}
	c.To = descriptors.Override{
		RequestsPerUnit: r.Requests, LargeRequestsPerUnit: r.Large, Unit: descriptors.ParseUnit(strings.ToLower(r.Unit)), Multiplier: r.Multiplier,
	}
	switch err = validate(c, Longest); {
	case kind < 0:
		err = fmt.Errorf("unknown kind %q", r.Kind)
	case err == nil && c.ID == "":
		err = errors.New("it has no ID")
	}
	if err != nil {
		return nil, false, fmt.Errorf("the control with the key %s: %w", e.Key, err)
	}
	return c, false, nil
}
