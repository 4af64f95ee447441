package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

const oneRule = "domain: shop\ndescriptors:\n  - {key: user, rate_limit: {unit: year, requests_per_unit: 9}}\n"

// Bodies of nothing but elements, twelve at once, take at most 40 MB, whether the server is told to take the larger ones or
// not, and so do requests of the largest size that are decided.
func TestH11_ManyElements(t *testing.T) {
	t.Parallel()
	elements := func(size int) string {
		return `{"domain":"shop","descriptors":[` + strings.Repeat("{},", size/3-20) + "{}]}"
	}
	// 1,023 descriptors of 15 entries, as many as there may be, in just below 1 MiB.
	entry := fmt.Sprintf(`{"key":"user","value":%q}`, strings.Repeat("v", 41))
	descriptor := `{"entries":[` + strings.Repeat(entry+",", 14) + entry + "]}"
	full := `{"domain":"shop","descriptors":[` + strings.Repeat(descriptor+",", 1022) + descriptor + "]}"
	if len(full) > 1<<20 || len(full) < 1<<20-1<<16 {
		t.Fatalf("the largest body has %d bytes; want almost 1 MiB", len(full))
	}
	for _, tt := range []struct {
		name, body string
		want, most int // the status, and the megabytes
		env        []string
	}{
		{"4 MiB of elements", elements(4 << 20), http.StatusRequestEntityTooLarge, 40, nil},
		{"1 MiB of elements", elements(1 << 20), http.StatusBadRequest, 40, nil},
		{"4 MiB of elements, allowed", elements(4 << 20), http.StatusBadRequest, 40, []string{"JSON_MAX_BODY_SIZE_IN_BYTES=4194304"}},
		{"1 MiB that is decided", full, http.StatusOK, 120, nil},
		{"1 MiB that is decided and told", full, http.StatusOK, 120, []string{"DECISION_METADATA=true"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := startProcess(t, oneRule, tt.env...)
			d.ready()
			before := d.Resident(t)
			var wg sync.WaitGroup
			for range 12 {
				wg.Go(func() {
					for range 3 {
						status, answer, err := testkit.Fetch(t.Context(), http.MethodPost, "http://"+d.At["HTTP"]+"/json", tt.body)
						// A client that is denied before it has sent everything may not see the answer.
						if status != tt.want && (err == nil || tt.want != http.StatusRequestEntityTooLarge) && status != http.StatusServiceUnavailable {
							t.Errorf("%d %.100s, %v; want %d", status, answer, err, tt.want)
						}
					}
				})
			}
			wg.Wait()
			if grown := (d.Peak(t) - before) / 1e6; grown > tt.most {
				t.Errorf("memory grew from %d MB by %d MB; want at most %d", before/1e6, grown, tt.most)
			} else {
				t.Logf("memory grew from %d MB by %d MB", before/1e6, grown)
			}
		})
	}
}

// Forty callers ask for 50,000 rules and do not read them: a few are served as far as they read, the others are told
// that there are too many, and the rules are there again once those have gone.
func TestH12_SlowReaders(t *testing.T) {
	t.Parallel()
	var rules strings.Builder
	rules.WriteString("domain: shop\ndescriptors:\n  - {key: user, rate_limit: &nine {unit: year, requests_per_unit: 9}}\n")
	const count = 20_000
	for i := 1; i < count; i++ {
		fmt.Fprintf(&rules, "  - {key: user, value: u%d, rate_limit: *nine}\n", i)
	}
	d := startProcess(t, rules.String())
	d.ready()
	var page string
	for _, path := range []string{"/rlconfig", "/rlconfig?verbose", "/rlconfig?format=json"} {
		page, _ = d.get("DEBUG", path) // what the first ones leave to the garbage collector
	}
	whole := float64(len(page)) / 1e6 // of what each reader asks for
	before, live := d.Resident(t), d.live()
	d.ResetPeak(t)
	var readers []net.Conn
	denied := make(chan bool, 40)
	for range cap(denied) {
		c := d.dialSlow()
		readers = append(readers, c)
		go func() { denied <- d.turnsAway(c) }()
	}
	turnedAway := 0
	for range cap(denied) {
		if <-denied {
			turnedAway++
		}
	}
	if turnedAway < 20 || turnedAway == cap(denied) {
		t.Errorf("%d of 40 callers were turned away; want most, but not all", turnedAway)
	}
	held, grown := d.live()-live, (d.Peak(t)-before)/1e6
	t.Logf("memory grew from %d MB by %d MB; %.1f MB are held for the readers, each of whom asked for %.1f MB", before/1e6, grown, held, whole)
	if float64(grown) > 6*whole || held > 3*whole {
		t.Errorf("memory grew by %d MB, and %.1f MB are held for the readers; want at most what six and three of the 40 asked for, %.1f MB each", grown, held, whole)
	}
	for _, c := range readers {
		_ = c.Close()
	}
	testkit.Eventually(t, "all rules are shown again", func() bool {
		body, status := d.get("DEBUG", "/rlconfig")
		return status == http.StatusOK && strings.Count(body, "\n") == count
	})
}

// live returns how many megabytes are in use, without what the garbage collector would free: loading so many rules leaves
// much of that, which could hide what readers take.
func (d *daemon) live() float64 {
	d.t.Helper()
	d.get("DEBUG", "/debug/pprof/heap?gc=1")
	return d.metric("go_memstats_heap_alloc_bytes") / 1e6
}

// dialSlow opens a connection to the debug listener that takes few bytes before they are read.
func (d *daemon) dialSlow() net.Conn {
	d.t.Helper()
	c, err := net.Dial("tcp", d.At["DEBUG"])
	testkit.Check(d.t, err)
	d.t.Cleanup(func() { _ = c.Close() })
	testkit.Check(d.t, c.(*net.TCPConn).SetReadBuffer(4096))
	testkit.Check(d.t, c.SetDeadline(time.Now().Add(testkit.Patience)))
	return c
}

// turnsAway asks for the rules, and reads only the head of the answer if it has them.
func (d *daemon) turnsAway(c net.Conn) bool {
	if _, err := io.WriteString(c, "GET /rlconfig?format=json HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		d.t.Errorf("asking: %v", err)
		return false
	}
	resp, err := http.ReadResponse(bufio.NewReaderSize(c, 16), nil) //nolint:bodyclose // that would read it; the connection is closed
	if err != nil {
		d.t.Errorf("no answer: %v", err)
		return false
	}
	if resp.StatusCode == http.StatusOK {
		return false // its body is not read
	}
	text, err := io.ReadAll(resp.Body)
	if want := "too many callers are reading this page at once; try again later\n"; err != nil || resp.StatusCode != http.StatusServiceUnavailable || string(text) != want {
		d.t.Errorf("%d %q, %v; want 503 %q", resp.StatusCode, text, err, want)
	}
	return true
}
