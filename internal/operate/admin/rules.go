package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/internal/rules/rulemessage"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Bounds of a page of ListRules. The number of bytes also bounds a page of ListControls. A page stays below the 4 MiB that a gRPC
// client accepts.
const (
	maxPageRules = 1000
	maxPageBytes = 2 << 20
)

// maxSearch bounds the search text in bytes.
const maxSearch = 256

// WriteRules writes one line per limit of s, in file order, like envoyproxy/ratelimit's /rlconfig; see
// [descriptors.Rule.AppendConfig]. It writes nothing for a nil s.
func WriteRules(w io.Writer, s *descriptors.Set) error {
	return writeRules(w, s, func(lines []byte, _ *descriptors.Rule) []byte { return lines })
}

// WriteRulesVerbose is like WriteRules, but writes a line with # before each rule: the place of its definition, and whether it is
// unlimited.
func WriteRulesVerbose(w io.Writer, s *descriptors.Set) error {
	return writeRules(w, s, func(lines []byte, r *descriptors.Rule) []byte {
		lines = append(append(lines, "# "...), plain.Text(r.Origin())...)
		if r.Unlimited {
			lines = append(lines, ", unlimited"...)
		}
		return append(lines, '\n')
	})
}

// writeRules writes the lines of each rule after the lines that before appends.
func writeRules(w io.Writer, s *descriptors.Set, before func([]byte, *descriptors.Rule) []byte) error {
	if s == nil {
		return nil
	}
	var lines []byte
	for r := range s.Rules() {
		lines = r.AppendConfig(before(lines[:0], r))
		if _, err := w.Write(lines); err != nil {
			return fmt.Errorf("writing the rules: %w", err)
		}
	}
	return nil
}

// WriteRulesJSON writes a ListRulesResponse with all rules of s as JSON, one rule per line. It uses the names of the proto file,
// and includes unset fields other than messages.
func WriteRulesJSON(w io.Writer, s *descriptors.Set) error {
	w = &plain.Writer{Raw: w}
	b := bytes.NewBufferString(`{"rules":[`)
	separator := "\n"
	if s != nil {
		for r := range s.Rules() {
			b.WriteString(separator)
			separator = ",\n"
			if err := appendJSON(b, r); err != nil {
				return err
			}
			if _, err := b.WriteTo(w); err != nil {
				return fmt.Errorf("writing the rules: %w", err)
			}
		}
	}
	b.WriteString("\n]}\n")
	if _, err := b.WriteTo(w); err != nil {
		return fmt.Errorf("writing the rules: %w", err)
	}
	return nil
}

// appendJSON appends a rule to b. It compacts the JSON because protojson adds white space at random.
func appendJSON(b *bytes.Buffer, r *descriptors.Rule) error {
	text, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(rulemessage.Of(r))
	if err == nil {
		err = json.Compact(b, text)
	}
	if err != nil {
		return fmt.Errorf("writing the rule %s: %w", r.Path, err)
	}
	return nil
}

// ListRules lists the current rules.
func (s methods) ListRules(ctx context.Context, q *adminv1.ListRulesRequest) (*adminv1.ListRulesResponse, error) {
	set, tally := s.limiter.Tallies()
	if set == nil {
		return nil, limiter.ErrNoRules
	}
	most, err := pageSize(q.GetPageSize(), maxPageRules, maxPageRules)
	if err != nil {
		return nil, err
	}
	after, err := parsePageToken(q.GetPageToken())
	if err != nil {
		return nil, err
	}
	words := strings.Fields(strings.ToLower(q.GetSearch()))
	if len(q.GetSearch()) > maxSearch {
		return nil, invalidf("search has %d bytes: it may have at most %d", len(q.GetSearch()), maxSearch)
	}
	who := whoOf(ctx)
	answer, rules, err := page(set, most, after, func(r *descriptors.Rule) bool {
		return strings.HasPrefix(r.Path, q.GetPathPrefix()) && who.Sees(r.DomainName()) && (len(words) == 0 || hasWords(r, words))
	})
	if err != nil {
		return nil, err
	}
	answer.Time = timestamppb.Now()
	controls := s.above(s.controls.Cached())
	for _, r := range rules {
		answer.States = append(answer.States, s.stateMessage(r, tally(r), controls[r]))
	}
	return answer, nil
}

// hasWords reports whether the text of a rule contains all words, which must be in lower case.
func hasWords(r *descriptors.Rule, words []string) bool {
	text := strings.ToLower(r.Path + " " + r.File + " " + r.String())
	return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) })
}

// page returns a page of the wanted rules of s after the rule of token after, with the total number of wanted rules.
func page(s *descriptors.Set, most int, after *pageToken, wanted func(*descriptors.Rule) bool) (answer *adminv1.ListRulesResponse, rules []*descriptors.Rule, err error) {
	answer = &adminv1.ListRulesResponse{}
	size, found := 0, after == nil
	for r := range s.Rules() {
		if after != nil && r.Index == after.index {
			if tokenOf(r) != *after {
				return nil, nil, errRulesChanged
			}
			found = true
		}
		if !wanted(r) {
			continue
		}
		answer.Total++
		switch {
		case after != nil && r.Index <= after.index, answer.NextPageToken != "":
			continue
		case len(answer.Rules) == most || size > maxPageBytes:
			answer.NextPageToken = tokenOf(rules[len(rules)-1]).String()
			continue
		}
		m := rulemessage.Of(r)
		size += proto.Size(m) + 2*len(r.Path) // the rule and its state
		answer.Rules = append(answer.Rules, m)
		rules = append(rules, r)
	}
	if !found { // the set has become shorter
		return nil, nil, errRulesChanged
	}
	return answer, rules, nil
}

// pageToken identifies the last rule of a page by its index and a hash, so that a change of rules is detected.
type pageToken struct {
	index int
	sum   uint64
}

func tokenOf(r *descriptors.Rule) pageToken {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%q %q %d", r.Path, r.File, r.Line) // writing to a hash never fails
	return pageToken{index: r.Index, sum: h.Sum64()}
}

// String encodes a token.
func (t pageToken) String() string {
	return strconv.Itoa(t.index) + "-" + strconv.FormatUint(t.sum, 16)
}

// parsePageToken decodes a token. It returns nil for the first page.
func parsePageToken(token string) (*pageToken, error) {
	if token == "" {
		return nil, nil //nolint:nilnil // the first page has no token
	}
	index, sum, _ := strings.Cut(token, "-")
	i, err1 := strconv.Atoi(index)
	u, err2 := strconv.ParseUint(sum, 16, 64)
	if err := errors.Join(err1, err2); err != nil || i < 0 {
		return nil, invalidf("page_token %q was not issued by this server", token)
	}
	return &pageToken{index: i, sum: u}, nil
}
