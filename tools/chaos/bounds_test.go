package main

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/ratelimitd/ratelimitd/tools/exact/proof"
)

// TestAbove: proof.Check finds one hit above a bound, and nothing within it.
func TestAbove(t *testing.T) {
	edge := time.Unix(1_800_000_000, 0) // start of a window
	for _, b := range boundedRules() {
		at := func(after time.Duration) proof.Call {
			return b.admitted(edge.Add(after), edge.Add(after+10*time.Microsecond))
		}
		var all []proof.Call
		for i := range boundHits {
			all = append(all, at(100*time.Millisecond+time.Duration(i)*time.Microsecond))
		}
		if x := proof.Check(all, 1); len(x) != 0 {
			t.Errorf("%s: %d allowed hits are above the bound: %s", b.name, len(all), x[0].Promise)
		}
		if x := proof.Check(append(slices.Clone(all), at(100*time.Millisecond+50*time.Microsecond)), 1); len(x) == 0 {
			t.Errorf("%s: a hit above the bound is not found", b.name)
		}
		if x := proof.Check(append(slices.Clone(all), at(boundWindow+200*time.Millisecond)), 1); len(x) != 0 {
			t.Errorf("%s: a hit in the next window is above the bound: %s", b.name, x[0].Promise)
		}
	}
}

// TestCounterModel: the model rejects a history without a valid order. A call whose client gave up may explain a skipped number.
func TestCounterModel(t *testing.T) {
	op := func(call, end int64, cost uint64, out answered) porcupine.Operation {
		return porcupine.Operation{Input: cost, Call: call, Return: end, Output: out}
	}
	first := op(0, 1, 1, answered{known: true, ok: true, left: linearLimit - 1})
	skips := op(2, 3, 1, answered{known: true, ok: true, left: linearLimit - 3})
	for _, tt := range []struct {
		name    string
		history []porcupine.Operation
		want    bool
	}{
		{"one", []porcupine.Operation{first}, true},
		{"a skipped number", []porcupine.Operation{first, skips}, false},
		{"a skipped number after a call without an answer", []porcupine.Operation{first, op(1, 1<<60, 1, answered{}), skips}, true},
		{"a repeated number", []porcupine.Operation{first, op(2, 3, 1, answered{known: true, ok: true, left: linearLimit - 1})}, false},
	} {
		if got := porcupine.CheckOperations(counterModel(), tt.history); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestPairs: pairs returns distinct descriptors, although their joined texts are equal.
func TestPairs(t *testing.T) {
	e := &env{rand: rand.New(rand.NewPCG(1, 2))}
	if n := len(e.pairs(1000, 500)); n < 1500 {
		t.Errorf("%d descriptors, want 1,500", n)
	}
}

// TestSlot compares slot with CLUSTER KEYSLOT.
func TestSlot(t *testing.T) {
	for key, want := range map[string]int{"123456789": 12739, "foo": 12182, "{foo}x": 12182, "x{}foo": slot("x{}foo"), "": 0} {
		if got := slot(key); got != want {
			t.Errorf("slot of %q is %d, want %d", key, got, want)
		}
	}
}
