package web

import (
	"context"
	"net/http"
	"time"
)

// turnWait is how long to wait for a turn.
const turnWait = 5 * time.Second

// turns bounds how many requests do at once what takes much memory for each of them. It has room for that many.
type turns chan struct{}

// take waits for a turn, for a while, and reports whether it has come. Then it must be given back.
func (t turns) take(ctx context.Context) bool {
	select {
	case t <- struct{}{}:
		return true
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, turnWait)
	defer cancel()
	select {
	case t <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (t turns) giveBack() { <-t }

// busy answers 503 to a request for which there was no turn.
func busy(w http.ResponseWriter, why string) {
	http.Error(w, why+" at once; try again later", http.StatusServiceUnavailable)
}
