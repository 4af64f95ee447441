package cli

import (
	"fmt"
	"io"
	"time"
)

// progress is a progress bar on a terminal. It writes nothing to anything else.
type progress struct {
	w     io.Writer // nil if there is no terminal
	bytes func() (read, total int64)
	began time.Time
	shown time.Time
}

const (
	progressEvery = 200 * time.Millisecond
	progressWidth = 30
)

func newProgress(w io.Writer, bytes func() (read, total int64)) *progress {
	p := &progress{bytes: bytes, began: time.Now()}
	if isTerminal(w) {
		p.w = w
	}
	return p
}

func (p *progress) show(events uint64) {
	now := time.Now()
	if p.w == nil || now.Sub(p.shown) < progressEvery {
		return
	}
	p.shown = now
	took := now.Sub(p.began)
	read, total := p.bytes()
	fmt.Fprintf(p.w, "\r\x1b[K%s", progressText(read, total, events, took))
}

// end removes the bar.
func (p *progress) end() {
	if p.w != nil && !p.shown.IsZero() {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// progressText returns the bar; without a share if total is 0, which means unknown.
func progressText(read, total int64, lines uint64, took time.Duration) string {
	text := fmt.Sprintf("%d lines, %.0f per second", lines, float64(lines)/max(took.Seconds(), 0.001))
	if total <= 0 || read <= 0 {
		return text
	}
	share := min(float64(read)/float64(total), 1)
	bar := make([]byte, progressWidth)
	for i := range bar {
		bar[i] = '.'
		if float64(i) < share*progressWidth {
			bar[i] = '#'
		}
	}
	left := time.Duration(float64(took) * (1 - share) / share).Round(time.Second)
	return fmt.Sprintf("[%s] %3.0f %%  %s, %s left", bar, share*100, text, left)
}
