# Completion for fish: lockkeeper itself returns the possible words.

function __lockkeeper_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l answer ($words[1] __complete $words[2..-1] 2> /dev/null)
    switch "$answer[1]"
        case 'command *'
            set -l first (math (string replace 'command ' '' -- $answer[1]) + 2)
            set -l rest (string escape -- $words[$first..-1])
            # The word being typed is not quoted yet.
            set rest[-1] $words[-1]
            complete -C (string join -- ' ' $rest)
        case files
            __fish_complete_path $words[-1]
        case words
            printf '%s\n' $answer[2..-1]
    end
end

complete -c lockkeeper -f -a '(__lockkeeper_complete)'
