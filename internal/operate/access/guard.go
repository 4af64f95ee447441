package access

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/leaf/smallfile"
	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
)

// Bounds of what is slowed down.
const (
	slowFor     = time.Second
	slowOneFrom = 4   // calls with wrong tokens from one address that are waited out at a time: those are its guesses in a second
	slowAll     = 256 // the same from all addresses
	longToken   = 32  // bytes of a token that cannot be guessed in any number of tries
)

// Guard slows those down who guess tokens, and counts them. One guards all listeners of a process. A nil guard does nothing.
type Guard struct {
	failed   func()
	unusable *throttle.Log             // of files of tokens, which any caller has read
	waiting  *throttle.Running[string] // calls with wrong tokens that are waited out, by where they came from

	mu    sync.Mutex
	files map[string]parsed // by name
}

// parsed is what a file of tokens was when it was parsed last.
type parsed struct {
	text   string
	tokens []Token
	err    error
}

// NewGuard returns a guard that calls failed for each call that is denied because of its caller.
func NewGuard(failed func()) *Guard {
	return &Guard{
		failed: failed, unusable: throttle.Every(time.Minute), waiting: throttle.AtMost[string](slowOneFrom, slowAll), files: make(map[string]parsed),
	}
}

var (
	errWrongToken  = status.Error(codes.Unauthenticated, "the token is wrong")
	errManyGuesses = status.Error(codes.ResourceExhausted, "too many wrong tokens in the last second: try again in a second")
)

// judge says what becomes of a call that shows a token, or a session that one has signed: good is that token, or empty if there is none,
// which is waited out. Where so many wrong ones came just now, from an address or from all, that no more are waited out, no short token is
// taken either. A long one is: otherwise a client that sends wrong ones from the operator's address, as through the same proxy, would lock the operator out.
func (g *Guard) judge(from net.Addr, good string) error {
	switch {
	case g == nil && good == "":
		return errWrongToken
	case g == nil, len(good) >= longToken:
		return nil
	}
	network := throttle.Network(AddressText(from))
	switch {
	case good != "" && g.waiting.Full(network):
		return errManyGuesses
	case good != "":
		return nil
	}
	done, ok := g.waiting.Begin(network)
	if !ok {
		return errManyGuesses
	}
	defer done()
	time.Sleep(slowFor) // also if the caller has gone, who may come back at once
	return errWrongToken
}

// tokens returns those of a file, which is read each time, since it may change, but parsed only when it has: a call with a wrong token must
// cost little, however many tokens there are. It must be a regular file: opening a pipe would wait until something writes to it.
func (g *Guard) tokens(file string) ([]Token, error) {
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", file)
	}
	text, err := smallfile.Read(file, maxTokens)
	switch {
	case err != nil:
		return nil, err
	case g == nil:
		return tokensOf(file, string(text))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	p, known := g.files[file]
	if !known || p.text != string(text) {
		p.text = string(text)
		p.tokens, p.err = tokensOf(file, p.text)
		g.files[file] = p
	}
	return p.tokens, p.err
}

// through returns log for a line about a file that cannot be used.
func (g *Guard) through(log *slog.Logger, file string) *slog.Logger {
	if g == nil {
		return log
	}
	return g.unusable.Through(log, file)
}

// Denied counts a call that is denied.
func (g *Guard) Denied() {
	if g != nil && g.failed != nil {
		g.failed()
	}
}
