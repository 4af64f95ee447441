package shares_test

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/shares"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the answers in testdata/*.txt")

// TestScripts plays testdata/*.txt. A script begins a bucket with "limit", and then says what happens when:
//
//	limit fast 100 per 1s burst 200           a token bucket; without a burst it is a fixed window; strict, with a replica's name
//	at 5s report a allowed 10 denied 2        a report of client a; the first one of a stream may say "elapsed 5s"
//	at 6s leave a                             the stream of a ends
//	at 7s down, at 8s up                      the store
//	at 9s take 50                             somebody else takes hits from the store
//	at 10s                                    nothing
//	at 11s jump 1h                            the clock jumps
//	at 12s holders                            what the bucket knows
//
// What the store is asked and what the clients are told in the meantime stands below each line.
func TestScripts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("finding scripts: %v in %v", err, files)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := playScript(t, string(want))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
				t.Errorf("(-want +got, go test -rewrite takes got over):\n%s", diff)
			}
		})
	}
}

// script is a script under way. Times count from the start.
type script struct {
	out    strings.Builder
	limit  simLimit
	store  *simStore
	start  shares.Micros
	now    shares.Micros
	jumped shares.Micros
	bucket *shares.Bucket
}

func playScript(t *testing.T, text string) string {
	t.Helper()
	s := &script{start: 6000 * second}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "  ") {
			continue
		}
		words := strings.Fields(line)
		if len(words) > 0 && words[0] == "at" {
			s.wait(span(t, words[1]))
		}
		fmt.Fprintln(&s.out, line)
		if len(words) > 0 && words[0] != "#" {
			s.do(t, words)
		}
	}
	return s.out.String()
}

func span(t *testing.T, text string) shares.Micros {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return shares.Micros(d.Microseconds())
}

// do plays a line.
func (s *script) do(t *testing.T, words []string) {
	t.Helper()
	number := func(i int) uint64 {
		n, err := strconv.ParseUint(words[i], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if words[0] == "limit" {
		s.limit = simLimit{Limit: shares.Limit{Hits: number(2), Window: span(t, words[4])}}
		if words[1] == "strict" {
			s.limit.mode = shares.Strict
		}
		level := float64(s.limit.Hits)
		if len(words) > 5 {
			s.limit.Burst = number(6)
			level = float64(s.limit.Burst)
		}
		s.now = s.start
		s.store = &simStore{limit: s.limit.Limit, level: level, at: s.now}
		s.bucket = shares.New(shares.Config{Limit: s.limit.Limit, Mode: s.limit.mode}, s.now)
		return
	}
	for i := 2; i < len(words); i++ {
		switch words[i] {
		case "report":
			u := shares.Usage{}
			c := shares.Client{ID: words[i+1], Weight: 1}
			for j := i + 2; j+1 < len(words); j += 2 {
				switch words[j] {
				case "elapsed":
					u.Elapsed = span(t, words[j+1])
				case "allowed":
					u.Allowed = number(j + 1)
				case "denied":
					u.Denied = number(j + 1)
				case "weight":
					c.Weight = float64(number(j + 1))
				}
			}
			s.bucket.Report(s.now+s.jumped, c, u)
			return
		case "leave":
			s.bucket.Leave(s.now+s.jumped, words[i+1])
		case "take":
			s.store.take(s.now, number(i+1))
		case "down", "up":
			s.store.down = words[i] == "down"
		case "jump":
			s.jumped += span(t, words[i+1])
		case "holders":
			for _, h := range s.bucket.Holders() {
				fmt.Fprintf(&s.out, "  %s is %s: demand %.1f, share %.1f, may use %.1f\n", h.ID, h.State, h.Demand, h.Share, h.Held)
			}
		}
	}
}

// wait lets the bucket do what is due until a time since the start.
func (s *script) wait(until shares.Micros) {
	until += s.start
	for {
		next := s.bucket.Next() - s.jumped
		if next > until {
			break
		}
		s.now = max(s.now, next)
		now := s.now + s.jumped
		at := time.Duration(s.now-s.start) * time.Microsecond
		if a, ok := s.bucket.Ask(now); ok {
			if s.store.down {
				fmt.Fprintf(&s.out, "  %v asks for %d: no answer, shares last: %v\n", at, a.Hits, s.bucket.Failed(now))
			} else {
				r := s.store.answer(s.now, a, false)
				if r.Ends > 0 {
					r.Ends += s.jumped
				}
				s.bucket.Answer(now, r)
				if a.Hits > 0 {
					fmt.Fprintf(&s.out, "  %v asks for %d: %d, %d left\n", at, a.Hits, r.Granted, r.Left)
				}
			}
		}
		for _, a := range s.bucket.Actions(now) {
			what := a.Kind.String()
			if a.Kind == shares.TokenBucket {
				rate := float64(a.TokensPerFill) / float64(a.FillInterval)
				what = fmt.Sprintf("%.2f/s, %d tokens (%d each %d s)", rate, a.MaxTokens, a.TokensPerFill, a.FillInterval)
			}
			fmt.Fprintf(&s.out, "  %v %s: %s, for %d s\n", at, a.Client, what, a.TTL)
		}
	}
	s.now = until
}
