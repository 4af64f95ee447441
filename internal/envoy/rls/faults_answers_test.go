package rls

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
)

// TestG11_LongAnswers checks that clients with default limits accept the answer, regardless of the length of the request's values and of
// their expansion to valid UTF-8 and JSON. Short texts are complete, and shortened ones are marked.
func TestG11_LongAnswers(t *testing.T) {
	w := start(t, threePerHour, Config{DecisionMetadata: true})
	ask := func(values ...string) []byte {
		message := field(requestDomain, []byte("shop")...)
		for _, v := range values {
			entry := slices.Concat(field(entryKey, []byte("user")...), field(entryValue, []byte(v)...))
			message = append(message, field(requestDescriptors, field(descriptorEntries, entry...)...)...)
		}
		return message
	}
	bad := strings.Repeat("\xffa", 3<<19)  // 3 MiB, or twice as much as valid UTF-8
	fits := strings.Repeat("x", 3_000_000) // less than the space for texts
	for _, tt := range []struct {
		name   string
		values []string
		cut    bool
	}{
		{"one value that is no UTF-8", []string{bad}, true},
		{"one that is just too long", []string{strings.Repeat("é", 1_900_000)}, true},
		{"many", slices.Repeat([]string{strings.Repeat("\xffa", 16_000)}, 128), true},
		{"as long as may be", []string{fits}, false},
		{"with short ones", []string{"ann", bad, "bob"}, true},
		{"with another long one", []string{strings.Repeat("y", 1_000_000), strings.Repeat("\xffa", 1_500_000)}, true},
	} {
		answer, err := w.send(ask(tt.values...))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if n := proto.Size(answer); n > 4_000_000 || len(answer.GetStatuses()) != len(tt.values) {
			t.Errorf("%s: the answer has %d bytes and %d statuses; want at most 4,000,000 and %d", tt.name, n, len(answer.GetStatuses()), len(tt.values))
		}
		metadata := answer.GetDynamicMetadata().AsMap()
		if metadata["truncated"] != any(tt.cut) && tt.cut || !tt.cut && metadata["truncated"] != nil {
			t.Errorf("%s: truncated is %v; want %v", tt.name, metadata["truncated"], tt.cut)
		}
		for i, d := range metadata["descriptors"].([]any) {
			whole := "user=" + strings.ToValidUTF8(tt.values[i], "\uFFFD")
			got := d.(map[string]any)["entries"].([]any)[0].(string)
			if begin, shortened := strings.CutSuffix(got, "…"); got != whole && (!shortened || len(got) < 20_000 || !strings.HasPrefix(whole, begin)) {
				t.Errorf("%s: value %d became %.20q… of %d bytes; want %.20q… of %d, or a long part of it and an ellipsis",
					tt.name, i, got, len(got), whole, len(whole))
			}
		}
	}
	for name, value := range map[string]string{
		"one value":              strings.Repeat("x", 3_900_000),
		"one that grows in JSON": strings.Repeat(`\u0001`, 670_000),
	} {
		body := `{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"` + value + `"}]}]}`
		status, _, answer := w.service.JSON(t.Context(), []byte(body))
		if status != 200 || len(answer) > 4_000_000 || plainJSON(t, answer)["dynamicMetadata"].(map[string]any)["truncated"] != true {
			t.Errorf("/json, %s: %d with %d bytes; want 200 with at most 4,000,000, and truncated in the metadata", name, status, len(answer))
		}
	}
}

// TestG11_LongRules checks that if the rules' metadata are too long, the metadata contain only the field truncated.
func TestG11_LongRules(t *testing.T) {
	rules, ask := "domain: shop\ndescriptors:\n", make([]string, 5)
	for i := range ask {
		note := strings.Repeat("x", 450_000)
		rules += fmt.Sprintf("  - key: user%d\n    rate_limit: {unit: hour, requests_per_unit: 3}\n    metadata:\n      a%[1]d: %s\n      b%[1]d: %[2]s\n", i, note)
		ask[i] = fmt.Sprintf("user%d=ann", i)
	}
	w := start(t, rules, Config{DynamicMetadata: true})
	answer := w.ask(request("shop", ask...))
	if got := answer.GetDynamicMetadata().AsMap(); len(answer.GetStatuses()) != len(ask) || !maps.Equal(got, map[string]any{"truncated": true}) {
		t.Errorf("%s with %.200v; want five statuses, and truncated alone", statuses(answer), got)
	}
}

// TestG12_ManyEntries checks that if the request has very many entries, the metadata contain only the field truncated.
func TestG12_ManyEntries(t *testing.T) {
	w := start(t, threePerHour, Config{DynamicMetadata: true})
	for per, whole := range map[int]bool{16: true, 17: false} {
		ask := slices.Repeat([]string{"other=a" + strings.Repeat(",k=", per-1)}, limiter.MaxDescriptors)
		answer := w.ask(request("shop", ask...))
		got := answer.GetDynamicMetadata().AsMap()
		if len(answer.GetStatuses()) != len(ask) || maps.Equal(got, map[string]any{"truncated": true}) == whole {
			t.Errorf("%d entries in each descriptor: %d statuses and %.200v; want all of the metadata: %t", per, len(answer.GetStatuses()), got, whole)
		}
	}
}
