// Package imagetest checks the Dockerfile without needing a container engine: it reads the file, runs its build steps
// in a temporary directory, and starts the server in the resulting root file system.
package imagetest
