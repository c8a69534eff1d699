package command

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// waitingLook is the interval at which watch looks for progress. A process without any waits.
const waitingLook = 10 * time.Second

// watch calls waiting when the process begins to wait, and when it goes on. The caller calls
// stop once; waiting is not called after stop returns.
func (p *Process) watch(look time.Duration, waiting func(bool)) (stop func()) {
	stopping, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(look)
		defer tick.Stop()
		before, was := p.done(), false
		for {
			select {
			case <-tick.C:
			case <-stopping:
				return
			}
			now := p.done()
			if is := now != "" && now == before; is != was {
				was = is
				waiting(is)
			}
			before = now
		}
	}()
	return func() {
		close(stopping)
		<-stopped
	}
}

// done returns a text that changes with all that a process does: its threads, their processor
// time and context switches. It is empty if unknown.
func (p *Process) done() string {
	pid := p.cmd.Process.Pid
	threads, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*"))
	if err != nil {
		return ""
	}
	var all bytes.Buffer
	for _, thread := range threads {
		stat, err := os.ReadFile(filepath.Join(thread, "stat"))
		if err != nil {
			return ""
		}
		status, err := os.ReadFile(filepath.Join(thread, "status"))
		if err != nil {
			return ""
		}
		all.Write(stat)
		if i := bytes.Index(status, []byte("voluntary_ctxt_switches:")); i >= 0 {
			all.Write(status[i:])
		}
	}
	return all.String()
}
