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

// Limits of guesses.
const (
	slowFor     = time.Second
	slowOneFrom = 4   // concurrent calls with wrong tokens from one address, and thus its guesses per second
	slowAll     = 256 // the same from all addresses
	longToken   = 32  // bytes of a token that is too long to guess
)

// Guard slows down and counts wrong tokens. All listeners of a process share one. A nil guard does nothing.
type Guard struct {
	failed   func()
	unusable *throttle.Log             // throttles errors of token files, which are read for every caller
	waiting  *throttle.Running[string] // delayed calls with wrong tokens, by network

	mu    sync.Mutex
	files map[string]parsed // by file name
}

// parsed is the last parsed contents of a token file.
type parsed struct {
	text   string
	tokens []Token
	err    error
}

// NewGuard returns a guard that calls failed for each denied call.
func NewGuard(failed func()) *Guard {
	return &Guard{
		failed: failed, unusable: throttle.Every(time.Minute), waiting: throttle.AtMost[string](slowOneFrom, slowAll), files: make(map[string]parsed),
	}
}

var (
	errWrongToken  = status.Error(codes.Unauthenticated, "the token is wrong")
	errManyGuesses = status.Error(codes.ResourceExhausted, "too many wrong tokens in the last second: try again in a second")
)

// checkGuess delays and limits guesses. good is the valid token of a call or session, or empty if it has none; then checkGuess waits and
// returns an error. While the maximum number of guesses from the same network or from all networks waits, checkGuess rejects short
// valid tokens too. It accepts long ones: otherwise a client behind the same proxy as the operator could lock the operator out
// with wrong tokens.
func (g *Guard) checkGuess(from net.Addr, good string) error {
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
	time.Sleep(slowFor) // even if the caller has disconnected, because it may return immediately
	return errWrongToken
}

// tokens returns the tokens of a file. It reads the file each time, because it may change, but parses it only after a change, so
// that a call with a wrong token costs little with many tokens. The file must be regular: opening a pipe would block.
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

// through returns a throttled logger for errors of a token file.
func (g *Guard) through(log *slog.Logger, file string) *slog.Logger {
	if g == nil {
		return log
	}
	return g.unusable.Through(log, file)
}

// Denied counts a denied call.
func (g *Guard) Denied() {
	if g != nil && g.failed != nil {
		g.failed()
	}
}
