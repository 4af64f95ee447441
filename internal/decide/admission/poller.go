package admission

import (
	"os"
	"runtime"
	"syscall"
)

// poller waits until the runtime has polled the network. By itself, the runtime polls only if nothing else is runnable, or every ten
// milliseconds, and then readers queue behind all running goroutines.
type poller struct {
	r, w *os.File
	raw  syscall.RawConn
}

// newPoller returns a poller, or nil if the system has no pipe for it. The pass of a nil poller only yields.
func newPoller() *poller {
	r, w, err := os.Pipe()
	if err != nil {
		return nil
	}
	raw, err := r.SyscallConn()
	if err != nil {
		_, _ = r.Close(), w.Close()
		return nil
	}
	return &poller{r: r, w: w, raw: raw}
}

// pass returns when all runnable goroutines have run and the runtime has polled the network. It waits for the runtime to notice that its
// pipe is readable.
func (p *poller) pass() {
	if p == nil {
		runtime.Gosched()
		return
	}
	var b [1]byte
	written, failed := false, false
	err := p.raw.Read(func(uintptr) bool {
		if written {
			return true
		}
		_, err := p.w.Write(b[:])
		written, failed = true, err != nil
		return failed
	})
	if err != nil || failed {
		runtime.Gosched()
		return
	}
	_, _ = p.r.Read(b[:])
}
