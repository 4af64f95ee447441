package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// scopeHelp explains how to choose descriptors.
const scopeHelp = `DOMAIN restricts the output to a domain, and DESCRIPTOR to descriptors with all of its entries:
key=value,key=value,... A key without a value matches any value.`

// scope says which descriptors a command is about.
type scope struct {
	query

	rule    string
	domain  string
	entries []*adminv1.EntryFilter
}

func (s *scope) add(p *program, cmd *cobra.Command) {
	s.query.add(p, cmd)
	cmd.Flags().StringVar(&s.rule, "rule", "", "show only this rule, such as shop.user")
	cmd.Args = atMost(2)
}

// parse reads the arguments.
func (s *scope) parse(args []string) error {
	if len(args) > 0 {
		s.domain = args[0]
	}
	if len(args) < 2 {
		return nil
	}
	for _, pair := range split(args[1], ',') {
		key, value, valued := cutPair(pair)
		if key == "" {
			return fmt.Errorf("descriptor %q: %q is neither a key nor of the form key=value", args[1], pair)
		}
		e := &adminv1.EntryFilter{Key: key}
		if valued {
			e.Value = new(value)
		}
		s.entries = append(s.entries, e)
	}
	return nil
}

// errNoHeader is the error of a stream that was cancelled because it did not begin in time.
var errNoHeader = errors.New("no header in time")

// begin returns a stream once the server has begun to answer.
func begin[S grpc.ClientStream](ctx context.Context, s *scope, open func(context.Context) (S, error)) (S, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(s.timeout, func() { cancel(errNoHeader) })
	stream, err := open(ctx)
	if err == nil {
		_, err = stream.Header()
	}
	if timer.Stop(); errors.Is(context.Cause(ctx), errNoHeader) {
		err = context.DeadlineExceeded
	}
	return stream, err
}

// entriesArgument returns entries as an argument, as a shell takes it.
func entriesArgument(es []*adminv1.Entry, cut bool) string {
	var pairs []string
	for _, e := range es {
		pairs = append(pairs, pairText(e.GetKey(), cmp.Or(string(e.GetRawValue()), e.GetValue())))
	}
	text := shellWord(strings.Join(pairs, ","))
	if cut {
		text += "…"
	}
	return text
}

// shellWord returns text as an argument, unless it is empty.
func shellWord(text string) string {
	if text == "" {
		return ""
	}
	return plain.Word(plain.Text(text))
}
