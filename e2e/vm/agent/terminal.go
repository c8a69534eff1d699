package agent

import (
	"fmt"
	"io"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// runOnTerminal runs the command on a new pseudo-terminal, as the leader of a
// session of its own.
func runOnTerminal(command *exec.Cmd, reader io.Reader, frames *frameWriter) (result, error) {
	master, slave, err := openTerminal()
	if err != nil {
		return result{}, fmt.Errorf("open a pseudo-terminal: %w", err)
	}
	defer master.Close()
	command.Stdin, command.Stdout, command.Stderr = slave, slave, slave
	command.SysProcAttr.Setctty = true
	err = command.Start()
	_ = slave.Close()
	if err != nil {
		return result{}, err
	}
	resize := func(rows, columns uint16) {
		_ = unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
	}
	go input(reader, endOfTransmission{master}, command.Process.Pid, resize)
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		// Ends with EIO when the last holder of the terminal has closed it.
		_, _ = io.Copy(kindWriter{frames, kindStdout}, master)
	}()
	res, err := ended(command.Wait())
	_ = unix.Kill(-command.Process.Pid, unix.SIGHUP)
	<-copied
	return res, err
}

// endOfTransmission ends a terminal's input the way a user does.
type endOfTransmission struct{ *os.File }

func (e endOfTransmission) Close() error {
	_, err := e.Write([]byte{4})
	return err
}

func openTerminal() (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		_ = master.Close()
		return nil, nil, err
	}
	return master, slave, nil
}
