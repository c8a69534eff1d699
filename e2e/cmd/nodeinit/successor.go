package main

import (
	"encoding/json"
	"fmt"
	"os"
	"syscall"
)

// successorDescriptor is the file descriptor of the pipe over which the supervisor names to
// process 1 the init to become.
const successorDescriptor = 3

// awaitSuccessor has process 1 become the init that the supervisor names, if it
// names one: a program that runs in its place and finds all processes, the
// supervisor among them, as its children.
func awaitSuccessor(succession *os.File) {
	defer succession.Close()
	var argv []string
	if err := json.NewDecoder(succession).Decode(&argv); err != nil || len(argv) == 0 {
		return // Process 1 stays what it is.
	}
	fmt.Printf("nodeinit: process 1 becomes %s\n", argv[0])
	err := syscall.Exec(argv[0], argv, environment)
	fmt.Printf("nodeinit: become %s: %v\n", argv[0], err)
}

// nameSuccessor asks process 1 to become the init argv, or to stay as it is where
// that is empty.
func nameSuccessor(argv []string) error {
	pipe := os.NewFile(successorDescriptor, "successor")
	defer pipe.Close()
	if err := json.NewEncoder(pipe).Encode(argv); err != nil {
		return fmt.Errorf("hand process 1 over to %v: %w", argv, err)
	}
	return nil
}
