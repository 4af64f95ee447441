package cli

import (
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// spanFlag is a time that a flag gives. It may have days and weeks.
type spanFlag time.Duration

// String implements [pflag.Value].
func (f *spanFlag) String() string {
	if *f == 0 {
		return ""
	}
	return descriptors.SpanText(time.Duration(*f))
}

// Set implements [pflag.Value].
func (f *spanFlag) Set(text string) error {
	d, err := descriptors.ParseSpan(text)
	*f = spanFlag(d)
	return err
}

// Type implements [pflag.Value].
func (*spanFlag) Type() string { return "duration" }
