package configwatch

import "context"

// Reloads are requests to a source to hand over the rules again. A request is where to send the outcome, or nil.
type Reloads chan chan<- error

// NewReloads returns Reloads without requests.
func NewReloads() Reloads { return make(Reloads, 1) }

// Reload triggers handing over the rules again, even without changes. It does not wait.
func (r Reloads) Reload() {
	select {
	case r <- nil:
	default: // a reload is pending
	}
}

// ReloadNow is Reload, and waits for the outcome, or until ctx ends.
func (r Reloads) ReloadNow(ctx context.Context) error {
	done := make(chan error, 1) // so that the source need not wait
	for {
		select {
		case r <- done:
			r = nil
		case err := <-done:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
