package command

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// waitingLook is how often a process is looked at. One that did nothing from one look to the next
// waits.
const waitingLook = 10 * time.Second

// watch calls waiting when the process begins to wait, and when it goes on. The caller calls stop
// once, which returns when waiting is not called any more.
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

// done is what changes with everything that a process does: its threads, the processor time that
// they took, and how often they were given one. It is empty when that is not known.
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
