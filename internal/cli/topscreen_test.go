package cli

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gdamore/tcell/v2"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// terminal is a live table on a screen in memory.
type terminal struct {
	tcell.SimulationScreen

	mu     sync.Mutex
	shown  string
	asked  []*adminv1.TopRequest
	answer *adminv1.TopResponse
	err    error
}

func (x *terminal) ask(_ context.Context, q *adminv1.TopRequest) (*adminv1.TopResponse, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.asked = append(x.asked, q)
	return proto.Clone(x.answer).(*adminv1.TopResponse), x.err
}

func (x *terminal) set(f func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	f()
}

// Show implements [tcell.Screen], and notes what is on the screen: the drawing goroutine may read that.
func (x *terminal) Show() {
	x.SimulationScreen.Show()
	cells, width, _ := x.GetContents()
	var b strings.Builder
	for i, c := range cells {
		if i%width == 0 {
			b.WriteByte('\n')
		}
		b.WriteString(string(c.Runes))
	}
	x.set(func() { x.shown = b.String() })
}

// text returns what is on the screen.
func (x *terminal) text() (text string) {
	x.set(func() { text = x.shown })
	return text
}

func (x *terminal) shows(t *testing.T, want string) {
	t.Helper()
	testkit.Eventually(t, "the screen shows "+want, func() bool { return strings.Contains(x.text(), want) }, x.text)
}

func (x *terminal) typed(text string) {
	for _, r := range text {
		x.InjectKey(tcell.KeyRune, r, tcell.ModNone)
	}
}

func TestLiveTop(t *testing.T) {
	x := &terminal{SimulationScreen: tcell.NewSimulationScreen("UTF-8"), answer: &adminv1.TopResponse{SampledOneIn: 4, Hits: 70}}
	for i, name := range []string{"ann", "bob", "cleo\x1b[2J", "dan", "eve", "fay", "gus", "hal"} {
		x.answer.Entries = append(x.answer.Entries, &adminv1.TopEntry{
			Domain: "shop", Rule: "shop.user", Entries: []*adminv1.Entry{{Key: "user", Value: name}}, Hits: uint64(1000 - i), HitsError: 7,
		})
	}
	if err := x.Init(); err != nil {
		t.Fatal(err)
	}
	x.SetSize(120, 9)
	q := &adminv1.TopRequest{Ranking: adminv1.Ranking_RANKING_BUSIEST, Window: adminv1.Window_WINDOW_MINUTE}
	s := &topScreen{
		screen: x, ask: x.ask,
		every: 10 * time.Millisecond, query: q, about: proto.Clone(q).(*adminv1.TopRequest), answer: x.answer,
	}
	ended := make(chan struct{})
	go func() { s.run(t.Context()); close(ended) }()
	x.shows(t, "sampled: 1 in 4 requests")
	x.shows(t, "1000  7         0  0  shop.user  shop user=ann")
	x.shows(t, `shop 'user=cleo\u001b[2J'`) // and does nothing to the terminal
	if strings.Contains(x.text(), "user=hal") {
		t.Errorf("more rows than fit:\n%s", x.text())
	}
	x.InjectKey(tcell.KeyPgDn, 0, tcell.ModNone)
	x.shows(t, "user=hal")
	x.typed("/HAL")
	x.shows(t, "search: HAL_")
	x.InjectKey(tcell.KeyEnter, 0, tcell.ModNone)
	x.shows(t, "(HAL, Esc shows all)")
	if strings.Contains(x.text(), "user=ann") || !strings.Contains(x.text(), "user=hal") {
		t.Errorf("a search for HAL shows\n%s", x.text())
	}
	x.InjectKey(tcell.KeyEsc, 0, tcell.ModNone)
	x.typed("rw")
	x.shows(t, "most rejected of all rules")
	x.shows(t, "user=ann")
	testkit.Eventually(t, "the server is asked for the most rejected of an hour", func() (is bool) {
		x.set(func() {
			last := x.asked[len(x.asked)-1]
			is = last.GetRanking() == adminv1.Ranking_RANKING_REJECTED && last.GetWindow() == adminv1.Window_WINDOW_HOUR
		})
		return is
	}, x.text)
	x.set(func() { x.err = errors.New("the server is away") })
	x.shows(t, "the server is away")
	x.shows(t, "user=ann") // as it was
	x.set(func() { x.err = nil })
	x.shows(t, "q quit")
	x.typed("q")
	<-ended
}

// A context that ends closes the table.
func TestLiveTopEnds(t *testing.T) {
	x := &terminal{SimulationScreen: tcell.NewSimulationScreen("UTF-8"), answer: &adminv1.TopResponse{}}
	if err := x.Init(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	s := &topScreen{screen: x, ask: x.ask, every: time.Hour, query: &adminv1.TopRequest{}, about: &adminv1.TopRequest{}, answer: x.answer}
	go func() { s.run(ctx); close(ended) }()
	x.shows(t, "no matching descriptors")
	cancel()
	<-ended
}
