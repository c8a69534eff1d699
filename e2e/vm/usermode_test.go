package vm

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carve-csi/carve/e2e/vm/guest"
)

func userModeConfig() Config {
	c := valid()
	c.Accelerator, c.CPUs = UML, 1
	c.UserMode = UserMode{Kernel: "/uml/linux", Libraries: "/uml/lib", Initramfs: "/uml/initramfs", Modules: "/uml/modules/7"}
	return c
}

func TestAKernelInUserModeIsGivenItsDisksNetworkAndConfiguration(t *testing.T) {
	c := userModeConfig()
	c.Disks = []Disk{{Path: "/d/b", Serial: "first"}}
	c.Tap, c.MAC = "tap1", "52:54:00:00:00:01"
	command, err := c.userModeCommand()
	if err != nil {
		t.Fatal(err)
	}
	if command.Path != "/uml/linux" || command.Dir != "/uml/lib" || !slices.Contains(command.Env, loaderVariable) {
		t.Errorf("the kernel is %s in %s, environment %q", command.Path, command.Dir, command.Env)
	}
	for _, want := range []string{
		"mem=2048M", "initrd=/uml/initramfs", "ubd0rc=/r,,root", "ubd1=/d/b,,first", "ssl0=fd:3",
		"vec0:transport=tap,ifname=tap1,mac=52:54:00:00:00:01,depth=128,gro=0",
		guest.FolderArgument + "=/run/m", guest.ModulesArgument + "=/uml/modules/7",
	} {
		if !slices.Contains(command.Args, want) {
			t.Errorf("the command line lacks %q: %q", want, command.Args)
		}
	}
	if !IsMachine(command.Args, "m", "/run/m") || IsMachine(command.Args, "m", "/run/n") {
		t.Errorf("the process is not distinguished from another machine's: %q", command.Args)
	}
}

func TestWhatAMachineInUserModeCannotHaveIsRefused(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"persistent memory":         func(c *Config) { c.PmemMiB = 512 },
		"SELinux":                   func(c *Config) { c.SELinux = true },
		"a disk that a server has":  func(c *Config) { c.Disks = []Disk{{Socket: "/s", Serial: "x"}} },
		"a colon in a path":         func(c *Config) { c.Disks = []Disk{{Path: "/a:b", Serial: "x"}} },
		"a space in a path":         func(c *Config) { c.Dir = "/run/a b" },
		"what QEMU has not, either": func(c *Config) { c.MemoryMiB = 512 },
	} {
		c := userModeConfig()
		change(&c)
		if _, err := c.userModeCommand(); err == nil {
			t.Errorf("%s: want an error", name)
		}
	}
}

func TestNothingIsSentBeforeTheGreeting(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	g := newGreeted(ours)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = g.Write([]byte("question"))
	}()
	received := make(chan string, 1)
	go func() {
		buffer := make([]byte, 64)
		n, _ := g.Read(buffer)
		received <- string(buffer[:n])
	}()
	// What a terminal shows before the agent has set it up, and the greeting in two parts.
	for _, part := range []string{"login: ", guest.Greeting[:5], guest.Greeting[5:] + "answer"} {
		select {
		case <-sent:
			t.Fatal("something was sent before the greeting")
		default:
		}
		if _, err := theirs.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if got := <-received; got != "answer" {
		t.Errorf("read %q after the greeting, want %q", got, "answer")
	}
	buffer := make([]byte, 64)
	if n, err := theirs.Read(buffer); err != nil || string(buffer[:n]) != "question" {
		t.Errorf("the machine read %q, %v", buffer[:n], err)
	}
	<-sent
}

func TestAConnectionThatIsClosedBeforeTheGreetingDelaysNoOther(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	g := newGreeted(ours)
	ended := make(chan error, 1)
	go func() {
		_, err := g.Write([]byte("question"))
		ended <- err
	}()
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the write succeeded")
		}
	case <-time.After(time.Minute):
		t.Fatal("the write waits")
	}
	if _, err := g.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("read: %v, want that it is closed", err)
	}
}
