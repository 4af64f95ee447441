package cli

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gdamore/tcell/v2"
	"google.golang.org/protobuf/proto"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// topScreen is a live table. What it shows changes in run alone, with what is posted to the screen.
type topScreen struct {
	screen  tcell.Screen
	ask     func(context.Context, *adminv1.TopRequest) (*adminv1.TopResponse, error)
	servers int // how many were given
	every   time.Duration

	query  *adminv1.TopRequest
	answer *adminv1.TopResponse
	about  *adminv1.TopRequest // what was answered
	err    error               // of the last question; answer is older then
	search string
	typing bool // of search
	first  int  // row of the table that is the first on the screen
}

// reply is what became of a question.
type reply struct {
	query  *adminv1.TopRequest
	answer *adminv1.TopResponse
	err    error
}

// run shows the table until q is pressed or ctx ends.
func (s *topScreen) run(ctx context.Context) {
	defer s.screen.Fini()
	questions := make(chan *adminv1.TopRequest, 1)
	var group sync.WaitGroup
	defer group.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group.Go(func() { s.follow(ctx, questions) })
	questions <- s.next()
	for {
		s.draw()
		switch event := s.screen.PollEvent().(type) {
		case nil:
			return
		case *tcell.EventResize:
			s.screen.Sync()
		case *tcell.EventInterrupt:
			got, ok := event.Data().(reply)
			if !ok {
				return
			}
			s.take(got)
		case *tcell.EventKey:
			before := s.next()
			if !s.press(event) {
				return
			}
			if q := s.next(); !proto.Equal(q, before) {
				select {
				case <-questions: // one that is out of date
				default:
				}
				questions <- q
			}
		}
	}
}

// next returns what to ask: for as many as there are while there is something to search.
func (s *topScreen) next() *adminv1.TopRequest {
	q := proto.Clone(s.query).(*adminv1.TopRequest)
	q.PageSize = maxTopRows
	return q
}

// follow asks what it was given last, again and again, and posts the answers.
func (s *topScreen) follow(ctx context.Context, questions <-chan *adminv1.TopRequest) {
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	var q *adminv1.TopRequest
	for {
		select {
		case <-ctx.Done():
			_ = s.screen.PostEvent(tcell.NewEventInterrupt(nil)) // so that run ends
			return
		case q = <-questions:
		case <-tick.C:
		}
		if q == nil {
			continue
		}
		answer, err := s.ask(ctx, q)
		if ctx.Err() == nil {
			_ = s.screen.PostEvent(tcell.NewEventInterrupt(reply{q, answer, err})) // if it is full the next one will do
		}
	}
}

// take shows what became of a question, unless another one has been asked since.
func (s *topScreen) take(got reply) {
	if !proto.Equal(got.query, s.next()) {
		return
	}
	if s.err = got.err; got.err == nil {
		s.answer, s.about = got.answer, got.query
	}
}

// press does what a key means, and reports false for the one that ends.
func (s *topScreen) press(key *tcell.EventKey) bool {
	if key.Key() == tcell.KeyCtrlC {
		return false
	}
	if s.typing {
		s.typeKey(key)
		return true
	}
	_, height := s.screen.Size()
	switch key.Key() { //nolint:exhaustive // the others mean nothing
	case tcell.KeyUp:
		s.first--
	case tcell.KeyDown:
		s.first++
	case tcell.KeyPgUp:
		s.first -= height / 2
	case tcell.KeyPgDn:
		s.first += height / 2
	case tcell.KeyHome:
		s.first = 0
	case tcell.KeyEsc:
		s.search, s.first = "", 0
	}
	switch key.Rune() {
	case 'q':
		return false
	case '/':
		s.typing, s.search, s.first = true, "", 0
	case 'r':
		s.query.Ranking, s.first = 3-s.query.GetRanking(), 0 // there are two, 1 and 2
	case 'w':
		s.query.Window, s.first = 3-s.query.GetWindow(), 0 // likewise
	}
	return true
}

// typeKey changes what is searched.
func (s *topScreen) typeKey(key *tcell.EventKey) {
	text := []rune(s.search)
	switch key.Key() { //nolint:exhaustive // the others mean nothing
	case tcell.KeyEnter:
		s.typing = false
	case tcell.KeyEsc:
		s.typing, s.search = false, ""
	case tcell.KeyBackspace, tcell.KeyBackspace2:
		s.search = string(text[:max(len(text)-1, 0)])
	case tcell.KeyRune:
		s.search = string(append(text, key.Rune()))
	}
}

// draw shows the table, and below it what the keys do or what is typed.
func (s *topScreen) draw() {
	s.screen.Clear()
	_, height := s.screen.Size()
	lines := topTable(s.about, s.answer, s.search, s.servers)
	head := len(topHead(s.about, s.answer, s.servers)) + 1
	room := max(height-head-1, 0)
	s.first = min(max(s.first, 0), max(len(lines)-head-room, 0))
	for y, line := range lines[:head] {
		style := tcell.StyleDefault
		if y == head-1 {
			style = style.Bold(true)
		}
		s.print(y, line, style)
	}
	for y, line := range lines[head+s.first:] {
		if y < room {
			s.print(head+y, line, tcell.StyleDefault)
		}
	}
	s.print(height-1, s.footer(), tcell.StyleDefault.Reverse(true))
	s.screen.Show()
}

func (s *topScreen) footer() string {
	switch {
	case s.typing:
		return "search: " + s.search + "_   Enter keeps it, Esc shows all"
	case s.err != nil:
		return fmt.Sprintf("as of %s: %v", s.answer.GetTo().AsTime().Local().Format(time.TimeOnly), s.err)
	case s.search != "":
		return "r ranking   w window   / search (" + s.search + ", Esc shows all)   q quit"
	default:
		return "r ranking   w window   / search   q quit"
	}
}

func (s *topScreen) print(y int, text string, style tcell.Style) {
	s.screen.PutStrStyled(0, y, text, style)
}
