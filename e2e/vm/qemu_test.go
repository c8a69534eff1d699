package vm

import (
	"slices"
	"strings"
	"testing"
)

func valid() Config {
	return Config{
		Name: "m", Dir: "/run/m", Kernel: "/k", Initramfs: "/i", RootDisk: "/r",
		CPUs: 2, MemoryMiB: 2048, Accelerator: TCG,
	}
}

func arguments(t *testing.T, c Config) string {
	t.Helper()
	args, err := c.arguments()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(args, " ")
}

func TestPersistentMemoryLiesBetweenTwoPartsOfTheKernels(t *testing.T) {
	c := valid()
	c.PmemMiB, c.PmemFile = 512, "/run/pmem"
	line := arguments(t, c)
	for _, want := range []string{
		"-m 2560M",
		"memory-backend-ram,id=low,size=1024M",
		"memory-backend-file,id=pmem,size=512M,mem-path=/run/pmem,share=on",
		"memory-backend-ram,id=high,size=1024M",
		"memmap=512M!1024M",
	} {
		if !strings.Contains(line, want) {
			t.Errorf("the command line lacks %q: %s", want, line)
		}
	}
}

func TestOnlyVolatileDisksIgnoreFlushes(t *testing.T) {
	c := valid()
	c.Disks = []Disk{{Path: "/a", Serial: "a"}, {Path: "/b", Serial: "b", Volatile: true}}
	args, err := c.arguments()
	if err != nil {
		t.Fatal(err)
	}
	for path, unsafe := range map[string]bool{"/a": false, "/b": true} {
		index := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "file="+path+",") })
		if index < 0 || strings.Contains(args[index], "cache=unsafe") != unsafe {
			t.Errorf("disk %s: %q", path, args)
		}
	}
}

func TestAMachineWithoutATapHasNoNetwork(t *testing.T) {
	if line := arguments(t, valid()); strings.Contains(line, "virtio-net") {
		t.Errorf("the command line has a network card: %s", line)
	}
	c := valid()
	c.Tap, c.MAC = "tap1", "52:54:00:00:00:01"
	if line := arguments(t, c); !strings.Contains(line, "ifname=tap1") {
		t.Errorf("the command line has no tap: %s", line)
	}
}

func TestWhatQEMUWouldMisreadIsRefused(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"a comma in a path":       func(c *Config) { c.Disks = []Disk{{Path: "/a,b", Serial: "x"}} },
		"a comma in the name":     func(c *Config) { c.Name = "a,b" },
		"too little memory":       func(c *Config) { c.MemoryMiB = 512 },
		"memory above the hole":   func(c *Config) { c.MemoryMiB, c.PmemMiB = 2560, 512 },
		"no processor":            func(c *Config) { c.CPUs = 0 },
		"no folder":               func(c *Config) { c.Dir = "" },
		"a new line in the share": func(c *Config) { c.Shares = []Share{{Tag: "x\n", Path: "/"}} },
	} {
		c := valid()
		change(&c)
		if _, err := c.arguments(); err == nil {
			t.Errorf("%s: want an error", name)
		}
	}
}
